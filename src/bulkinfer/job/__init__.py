"""The job file: what people write to say what shall be done. The only room that knows pydantic and YAML.

    text --document--> values with their places --load--> overrides, ${ENV} --spec--> JobSpec, or --explain--> JobError

It does not read the input, the model or the database, and it does not parse the templates.
"""

from bulkinfer.job.classify_spec import ClassifyTask
from bulkinfer.job.engine_spec import EngineSection
from bulkinfer.job.extract_spec import ExtractTask
from bulkinfer.job.input_spec import InputSpec
from bulkinfer.job.limit import FailureLimit, parse_failure_limit
from bulkinfer.job.limits_spec import LimitsSpec
from bulkinfer.job.load import Job, create_job, load_job
from bulkinfer.job.model_spec import ModelSpec
from bulkinfer.job.nearest import find_nearest
from bulkinfer.job.output_spec import OutputSpec
from bulkinfer.job.prompt_spec import PromptSpec
from bulkinfer.job.rerun import keep_task
from bulkinfer.job.row_sampling import RowFault, RowSampling
from bulkinfer.job.sampling_spec import SamplingSpec
from bulkinfer.job.spec import JobSpec, json_schema
from bulkinfer.job.task_spec import EmbedTask, GenerateTask, ScoreTask, TaskSpec

__all__ = [
    "ClassifyTask",
    "EmbedTask",
    "EngineSection",
    "ExtractTask",
    "FailureLimit",
    "GenerateTask",
    "InputSpec",
    "Job",
    "JobSpec",
    "LimitsSpec",
    "ModelSpec",
    "OutputSpec",
    "PromptSpec",
    "RowFault",
    "RowSampling",
    "SamplingSpec",
    "ScoreTask",
    "TaskSpec",
    "create_job",
    "find_nearest",
    "json_schema",
    "keep_task",
    "load_job",
    "parse_failure_limit",
]
