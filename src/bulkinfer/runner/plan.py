"""What is to be run, and everything that can be refused before the database is opened and a model is loaded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import ModuleType
from uuid import UUID

import orjson

from bulkinfer.constraints import find_pattern_warning, find_schema_warning
from bulkinfer.engines import find_config
from bulkinfer.engines.adapters import check_rank_limit, read_adapters
from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.from_job import describe_engine
from bulkinfer.engines.images import check_takes_images
from bulkinfer.engines.model_files import check_purpose
from bulkinfer.engines.reasoning import check_parser
from bulkinfer.engines.reserve import Reserve
from bulkinfer.engines.vllm_arguments import FORM_ARGUMENT
from bulkinfer.errors import InputError, JobError
from bulkinfer.fingerprint import fingerprint_task, identify_model
from bulkinfer.job import ClassifyTask, ExtractTask, Job, JobSpec, find_nearest, keep_task
from bulkinfer.priority import Priority
from bulkinfer.prompt import DocumentFault, PromptTemplate
from bulkinfer.records import Document, FailureCode, Message, Only, Origin, SourceFile
from bulkinfer.sources import add_images, find_input, open_source

MAX_PROBED_FILES = 16
"""Files whose field names are read beforehand: enough for a folder whose first are odd, quick for ten thousand."""
MAX_PROBED_ROWS = 10_000
"""Rows in which a field that seems to be missing is looked for; about a tenth of a second."""
MAX_NAME_CHARS = 60
"""Of a field, in a message."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A job, checked and resolved."""

    job: Job
    template: PromptTemplate
    task_fingerprint: UUID
    files: tuple[SourceFile, ...]
    prior: tuple[Message, ...] | None = None
    """The prompt of a document with empty fields, where its answer calibrates the others."""
    original_task: UUID | None = None
    """Of a run over failures whose job was changed with `--set`: the task of the job without that, if its documents are
    the same."""

    @property
    def layout(self) -> str:
        """See `describe_layout`."""
        return describe_layout(self.job, self.template)

    @property
    def engine_spec(self) -> EngineSpec:
        """What the engine is told."""
        return self.describe_engine()

    def describe_engine(self, priority: Priority = Priority.NORMAL) -> EngineSpec:
        """What the engine is told in a run of this priority."""
        spec = describe_engine(self.job, priority)
        return spec if spec.scoring is None else replace(spec, scoring=replace(spec.scoring, prior=self.prior))

    def iter_warnings(self) -> Iterator[str]:
        """What the job asks for and does not get, and what may go wrong with many documents."""
        match self.job.spec.task:
            case ExtractTask(answer_schema=dict(schema)) if warning := find_schema_warning(schema):
                yield f"task.schema: {warning}"
            case ExtractTask(regex=str(regex)) if warning := find_pattern_warning(regex):
                yield f"task.regex: {warning}"
        if (unchecked := find_form_warning(self.engine_spec)) is not None:
            yield unchecked
        limits = self.job.spec.limits
        reserve, most = Reserve(limits.reserve), limits.max_concurrency
        if reserve.share and most != "auto" and reserve.max_sequences(most) == most:
            kept = "it keeps its share of the KV cache alone"
            yield f"limits.reserve {reserve} of limits.max_concurrency {most} is less than one sequence: {kept}"


def plan_run(job: Job, only: Only = Only.NEW) -> RunPlan:
    """Check what can be checked without the model. Raises JobError and InputError.

    A run over failures belongs to the task of the job without those changes of `--set` that cannot alter an answer.
    """
    with job.placing():
        return _make_plan(job, only)


def _make_plan(job: Job, only: Only) -> RunPlan:
    template = PromptTemplate.of(job.spec)
    model = identify_model(job.model, job.spec.model.revision)
    check_purpose(describe_engine(job))
    if job.spec.engine.kind == "vllm":
        check_parser(job.spec.output.reasoning)
        if job.spec.prompt.images:
            check_takes_images(find_config(describe_engine(job)))
    adapters = read_adapters(job.adapters, job.model)
    check_rank_limit(adapters, job.spec.engine.vllm)
    digests = {adapter.name: adapter.digest for adapter in adapters}
    files = find_input(job)
    check_fields(job, template, files)
    files = add_images(files, template.describe_images(str(job.folder)))
    check_form(describe_engine(job))
    prior = render_prior(job, template)
    if only is Only.NEW or job.original is None:
        return RunPlan(job, template, fingerprint_task(job.spec, model, digests), tuple(files), prior)
    original_task = _find_original_task(job, job.original, template)
    # With other documents than before nothing that failed could be told, and the answers would belong to none of them.
    kept = job.spec if original_task is None else keep_task(job.spec, job.original)
    return RunPlan(job, template, fingerprint_task(kept, model, digests), tuple(files), prior, original_task)


def _find_original_task(job: Job, spec: JobSpec, template: PromptTemplate) -> UUID | None:
    original = replace(job, spec=spec)
    try:
        if describe_layout(original, PromptTemplate.of(spec)) != describe_layout(job, template):
            return None
        return _fingerprint(original)
    except JobError:  # it need not be able to run
        return None


def _fingerprint(job: Job) -> UUID:
    digests = {adapter.name: adapter.digest for adapter in read_adapters(job.adapters, job.model)}
    return fingerprint_task(job.spec, identify_model(job.model, job.spec.model.revision), digests)


def describe_layout(job: Job, template: PromptTemplate) -> str:
    """What besides the file decides the lines of `documents`: the fields that are hashed and the one that names."""
    return orjson.dumps([sorted(template.fields), job.spec.input.id]).decode()


def check_form(spec: EngineSpec) -> None:
    """Let the engine's backend say whether it can hold answers to their form, where it is there. Raises JobError."""
    if not spec.holds_text or spec.kind != "vllm":
        return
    if (grammar := find_grammar()) is not None:
        grammar.check_form(spec)


def find_form_warning(spec: EngineSpec) -> str | None:
    """What people must know where the backend cannot say so of the task's form.

    A document's own form (`sampling.columns.response_format`) is not asked about beforehand: it fails that one alone.
    """
    if spec.form is None or not spec.holds_text or spec.kind != "vllm":
        return None
    if FORM_ARGUMENT in spec.arguments:
        why = f"the job chooses another backend (engine.vllm.{FORM_ARGUMENT}) than the one that bulkinfer can ask"
    elif find_grammar() is None:
        why = "vLLM's backend for it (llguidance) is not installed here"
    else:
        return None
    key = "schema" if "json" in spec.form else "regex"
    return f"task.{key}: whether the engine can hold answers to it was not checked: {why}; it tells when it starts"


def find_grammar() -> ModuleType | None:
    """What asks the backend; None where that is not installed, as it comes with vLLM."""
    try:
        from bulkinfer.engines import grammar  # noqa: PLC0415 - see above
    except ImportError:
        return None
    return grammar


def render_prior(job: Job, template: PromptTemplate) -> tuple[Message, ...] | None:
    """The prompt of a document with empty fields, for a job that calibrates by it. Raises JobError if there is none."""
    if not (isinstance(job.spec.task, ClassifyTask) and job.spec.task.calibrate):
        return None
    if job.spec.prompt.messages is not None:
        raise JobError(f"{job.path}: task.calibrate: an empty document has no conversation; remove prompt.messages")
    rendered = template.render(Document(Origin("", 1, ""), dict.fromkeys(template.fields, "")))
    if isinstance(rendered, DocumentFault):
        raise JobError(
            f"{job.path}: task.calibrate: the prompt is made once with empty fields, and cannot be: {rendered.message}"
        )
    return rendered


def check_fields(job: Job, template: PromptTemplate, files: Sequence[SourceFile]) -> None:
    """Refuse a prompt that no document of the input can fill, and an id that none has."""
    probed = files[:MAX_PROBED_FILES]
    known: set[str] = set()
    for file in probed:
        known |= open_source(file, template.fields, job.spec.input.id).read_field_names()
    if not known:  # nothing to judge by: every row of the probe is unreadable, or there is none
        return
    for key, column in _list_columns(job):
        if column not in known and not _is_in_rows(column, probed):
            raise JobError(_describe_missing(job, f"{key} is", column, known, probed))
    missing = _first_missing_field(template, known)
    if missing and not _is_in_rows(missing, probed):
        raise JobError(_describe_missing(job, "the prompt prints", missing, known, probed))
    id_field = job.spec.input.id
    if id_field is not None and id_field not in known and not _is_in_rows(id_field, probed):
        raise JobError(_describe_missing(job, "input.id is", id_field, known, probed))


def _list_columns(job: Job) -> list[tuple[str, str]]:
    """Keys of the job that name a field outside of templates, and the field."""
    prompt, sampling = job.spec.prompt, job.spec.sampling
    named = [] if prompt.messages is None else [("prompt.messages", prompt.messages)]
    named += [("prompt.images", field) for field in prompt.images or ()]
    if job.spec.model.adapter_column is not None:
        named.append(("model.adapter_column", job.spec.model.adapter_column))
    by_parameter = {} if sampling.columns is None else sampling.columns.to_fields()
    return named + [(f"sampling.columns.{name}", field) for name, field in by_parameter.items()]


def _first_missing_field(template: PromptTemplate, known: set[str]) -> str | None:
    """Render a document that has every field but one. A field used with a default is not missed; a printed one is.

    A template that wants more of its fields than a text, such as `{{ meta.subject }}`, cannot be judged without a real
    document; there each document is judged by itself.
    """
    if _misses_field(template, template.fields):
        return None
    unknown = sorted(template.fields - known)
    return next((name for name in unknown if _misses_field(template, template.fields - {name})), None)


def _misses_field(template: PromptTemplate, names: frozenset[str]) -> bool:
    fields = dict.fromkeys(names, "x")
    rendered = template.render(Document(Origin("", 1, ""), fields))
    joined = template.combine.render(["x"], fields) if template.combine else None
    return any(isinstance(one, DocumentFault) and one.code is FailureCode.MISSING_FIELD for one in (rendered, joined))


def _is_in_rows(name: str, files: Sequence[SourceFile]) -> bool:
    """Look for a field in more rows than a glance at the first ones: JSONL may have it only now and then."""
    rows = (row for file in files for row in open_source(file, frozenset({name}), None).iter_rows())
    return any(isinstance(row, Document) and name in row.fields for row in islice(rows, MAX_PROBED_ROWS))


def _describe_missing(job: Job, who: str, name: str, known: set[str], probed: Sequence[SourceFile]) -> str:
    nearest = find_nearest(name, sorted(known))
    where = probed[0].name if len(probed) == 1 else f"{probed[0].name} and {len(probed) - 1} more"
    advice = f"did you mean {nearest}?" if nearest else "correct the name."
    shown = ", ".join(map(_shorten, sorted(known)[:20]))
    looked_at = f"which the input lacks (up to {MAX_PROBED_ROWS:,} rows were looked at)"
    return f"{job.shown}: {who} the field {name}, {looked_at}; {advice} {where} has {shown}"


def _shorten(name: str) -> str:
    """A file without a header line has the texts of its first row for names."""
    return name if len(name) <= MAX_NAME_CHARS and name.isprintable() else f"<{len(name)} characters>"


def refuse_empty_input(plan: RunPlan) -> InputError:
    """The error for an input without a single row: more often a fault upstream than a job without work."""
    shown = ", ".join(file.name for file in plan.files[:5])
    return InputError(
        f"the input has no documents: {len(plan.files)} file(s) read to the end ({shown}), not one row. "
        f"Check what writes them, or input.path in {plan.job.shown}"
    )
