"""What a job file may say: every key with its type, bounds, default and description.

Strict: no value is converted silently and no unknown key is accepted. What is not a matter of one file's text (does the
input exist, does the template fit it, does vLLM know an argument) is checked elsewhere.
"""

from typing import Any

from pydantic import Field, model_validator

from bulkinfer.constraints import most_tokens
from bulkinfer.job.classify_spec import ClassifyTask
from bulkinfer.job.engine_spec import EngineSection
from bulkinfer.job.extract_spec import ExtractTask
from bulkinfer.job.fitting import (
    check_classify,
    check_model,
    check_overlong,
    check_pattern,
    check_prior,
    check_prompt,
    check_reasoning,
    check_row_form,
    check_sampling,
)
from bulkinfer.job.input_spec import InputSpec
from bulkinfer.job.limits_spec import LimitsSpec
from bulkinfer.job.model_spec import ModelSpec, check_adapters
from bulkinfer.job.output_spec import OutputSpec
from bulkinfer.job.prompt_spec import PromptSpec
from bulkinfer.job.sampling_spec import SamplingSpec, check_answers
from bulkinfer.job.section import NAME_PATTERN, Section, wrong_value
from bulkinfer.job.task_spec import GenerateTask, TaskSpec

SCHEMA_ID = "urn:bulkinfer:job"
"""A name, not a place: editors tell schemas apart by it."""


class JobSpec(Section):
    """A bulkinfer job: run one prompt over every document of an input."""

    name: str = Field(
        min_length=1,
        max_length=100,
        pattern=NAME_PATTERN,
        description="The job's name: letters, digits and . _ -",
        examples=["ticket-summaries"],
    )
    input: InputSpec = Field(description="The documents.")
    model: ModelSpec = Field(description="The model that answers.")
    task: TaskSpec = Field(default_factory=GenerateTask, description="What is done with each document.")
    prompt: PromptSpec = Field(description="What the model is given of one document: Jinja over its fields.")
    sampling: SamplingSpec = Field(
        default_factory=SamplingSpec,
        description="How an answer is drawn; by vLLM's names. Not for tasks that write none: embed and score.",
    )
    limits: LimitsSpec = Field(default_factory=LimitsSpec, description="What a run may use, and when it gives up.")
    engine: EngineSection = Field(default_factory=EngineSection, description="What runs the model.")
    output: OutputSpec = Field(description="Where the answers go.")

    @property
    def writes_answers(self) -> bool:
        """Whether the task draws tokens; otherwise it takes from the model a vector or a number."""
        return self.task.kind not in {"embed", "score"}

    @property
    def max_tokens(self) -> int:
        """The most output tokens of one answer: what the job says, or what follows from its task; 0 without answers."""
        if self.sampling.max_tokens is None and isinstance(self.task, ClassifyTask):
            return most_tokens(self.task.choices)
        return self.sampling.max_tokens or 0

    @model_validator(mode="after")
    def _check_task(self) -> "JobSpec":
        check_prompt(self.task.kind, self.prompt)
        check_sampling(self.task.kind, self.sampling if "sampling" in self.model_fields_set else None)
        check_model(self.task.kind, self.model)
        check_adapters(self.model)
        check_reasoning(self.task.kind, self.output)
        check_answers(self.sampling)
        check_overlong(self.task.kind, self.prompt, self.limits, self.sampling)
        check_row_form(self.task.kind, self.sampling, self.limits)
        match self.task:
            case ClassifyTask():
                check_classify(self.task, self.sampling, self.output)
                check_prior(self.task, self.model)
            case ExtractTask(regex=str(regex)):
                check_pattern(regex, self.max_tokens)
        return self

    @model_validator(mode="after")
    def _check_room_for_prompt(self) -> "JobSpec":
        limit = self.limits.max_context_tokens
        if limit != "auto" and self.max_tokens >= limit:
            raise wrong_value(
                f"less than limits.max_context_tokens ({limit}), as prompt and answer share it",
                "lower it, or raise limits.max_context_tokens",
                path=("sampling", "max_tokens"),
                found=self.max_tokens,
            )
        return self


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the job file, for editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = JobSpec.model_json_schema()
    draws_nothing = {"properties": {"kind": {"enum": ["embed", "score"]}}, "required": ["kind"]}
    rule = {
        "if": {"properties": {"task": draws_nothing}, "required": ["task"]},
        "else": {"required": ["sampling"]},
    }
    is_openai = {"properties": {"format": {"const": "openai"}}, "required": ["format"]}
    prompt_rule = {
        "if": {"properties": {"input": is_openai}, "required": ["input"]},
        "else": {"required": ["prompt"]},
    }
    schema["required"] = [key for key in schema["required"] if key != "prompt"]
    about = {"$schema": dialect, "$id": SCHEMA_ID}
    return {**about, **schema, **rule, "allOf": [prompt_rule], "title": "bulkinfer job"}
