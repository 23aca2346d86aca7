"""The run, end to end: documents in, answers on disk.

plan     what is to be run: template, identity, files; everything that can be refused before a model is loaded
parts    the store and the engine that a run holds
forecast what a run would find and do, with `survey`, `sample`, `spread` and `estimate`
telling  single documents in numbers, where somebody counts them
assembly one document that is answered in parts; `assemblies` has all of them
loop     shard -> queue -> engine -> outcome -> store
window   the engine and the requests in flight in it: starts, deaths, killers
ledger   what the loop counts, and the progress and the summary made of it
standing how the run stands, for those who look on; with `trend`, the last minutes
report   what a run is told from outside, and what it tells at its end
signals  SIGINT and SIGTERM as flags
"""

from bulkinfer.runner.forecast import forecast_run
from bulkinfer.runner.loop import run_job
from bulkinfer.runner.plan import RunPlan, plan_run
from bulkinfer.runner.report import RunOptions, RunReport
from bulkinfer.runner.signals import end_on_signals

__all__ = ["RunOptions", "RunPlan", "RunReport", "end_on_signals", "forecast_run", "plan_run", "run_job"]
