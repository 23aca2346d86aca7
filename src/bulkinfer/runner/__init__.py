"""The run, end to end: documents in, answers on disk.

plan.py    what is to be run: template, identity, files; everything that can be refused before a model is loaded
loop.py    the loop: shard -> queue -> engine -> outcome -> store
ledger.py  what the loop counts, and the progress and the summary made of it
signals.py SIGINT and SIGTERM as flags
"""

from bulkinfer.runner.loop import RunOptions, RunReport, run_job
from bulkinfer.runner.plan import RunPlan, plan_run

__all__ = ["RunOptions", "RunPlan", "RunReport", "plan_run", "run_job"]
