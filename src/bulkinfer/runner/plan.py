"""What is to be run, and everything that can be refused before the database is opened and a model is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import orjson

from bulkinfer.engines.base import EngineSpec
from bulkinfer.errors import InputError, JobError
from bulkinfer.fingerprint import fingerprint_task, identify_model
from bulkinfer.job import Job, find_nearest
from bulkinfer.prompt import DocumentFault, PromptTemplate
from bulkinfer.records import Document, FailureCode, Origin, SourceFile
from bulkinfer.sources import find_source_files, open_source

MAX_PROBED_FILES = 16
"""Files whose field names are read beforehand: enough for a folder whose first are odd, quick for ten thousand."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A job, checked and resolved."""

    job: Job
    template: PromptTemplate
    task_fingerprint: UUID
    files: tuple[SourceFile, ...]

    @property
    def layout(self) -> str:
        """What besides the file decides the lines of `documents`: the fields that are hashed and the one that names."""
        return orjson.dumps([sorted(self.template.fields), self.job.spec.input.id]).decode()

    @property
    def engine_spec(self) -> EngineSpec:
        """What the engine is told."""
        spec = self.job.spec
        arguments = spec.engine.vllm if spec.engine.kind == "vllm" else spec.engine.simulated
        return EngineSpec(
            kind=spec.engine.kind,
            model=self.job.model,
            revision=spec.model.revision,
            sampling=spec.sampling.to_engine(),
            max_concurrency=spec.limits.max_concurrency,
            max_context_tokens=spec.limits.max_context_tokens,
            arguments=arguments,
            chat_template=spec.model.chat_template,
            trust_remote_code=spec.model.trust_remote_code,
        )


def plan_run(job: Job) -> RunPlan:
    """Check what can be checked without the model. Raises JobError and InputError."""
    template = PromptTemplate.parse(job.spec.prompt.system, job.spec.prompt.user)
    model = identify_model(job.model, job.spec.model.revision)
    files = find_source_files(job.input_patterns, job.folder)
    _check_fields(job, template, files)
    return RunPlan(job, template, fingerprint_task(job.spec, model), tuple(files))


def _check_fields(job: Job, template: PromptTemplate, files: Sequence[SourceFile]) -> None:
    """Refuse a prompt that no document of the input can fill, and an id that none has."""
    probed = files[:MAX_PROBED_FILES]
    known: set[str] = set()
    for file in probed:
        known |= open_source(file, frozenset(), None).read_field_names()
    if not known:  # nothing to judge by: every row of the probe is unreadable, or there is none
        return
    if missing := _first_missing_field(template, known):
        raise JobError(_describe_missing(job, "the prompt prints", missing, known, probed))
    if job.spec.input.id is not None and job.spec.input.id not in known:
        raise JobError(_describe_missing(job, "input.id is", job.spec.input.id, known, probed))


def _first_missing_field(template: PromptTemplate, known: set[str]) -> str | None:
    """Render a document that has every known field. A field used with a default is not missed; a printed one is."""
    for name in sorted(template.fields - known):
        fields = dict.fromkeys((known | template.fields) - {name}, "x")
        fault = template.render(Document(Origin("", 1, ""), fields))
        if isinstance(fault, DocumentFault) and fault.code is FailureCode.MISSING_FIELD:
            return name
    return None


def _describe_missing(job: Job, who: str, name: str, known: set[str], probed: Sequence[SourceFile]) -> str:
    nearest = find_nearest(name, sorted(known))
    where = probed[0].name if len(probed) == 1 else f"{probed[0].name} and {len(probed) - 1} more"
    advice = f"did you mean {nearest}?" if nearest else "correct the name"
    shown = ", ".join(sorted(known)[:20])
    return f"{job.path}: {who} the field {name}, which the input lacks; {advice}. {where} has {shown}"


def refuse_empty_input(plan: RunPlan) -> InputError:
    """The error for an input without a single row: more often a fault upstream than a job without work."""
    shown = ", ".join(file.name for file in plan.files[:5])
    return InputError(
        f"the input has no documents: {len(plan.files)} file(s) read to the end ({shown}), not one row. "
        f"Check what writes them, or input.path in {plan.job.path}"
    )
