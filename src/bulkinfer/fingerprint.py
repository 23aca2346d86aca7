"""What makes a document the same document, and a task the same task.

A result is kept under both: `document_hash` of the fields that the prompt uses, and `task_fingerprint` of all that can
change an answer. What cannot change one (limits, engine arguments, paths, names, order) is in neither. Both are the
first 16 bytes of a SHA-256. Nothing is read but the small files of a model folder.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from uuid import UUID

import orjson

from bulkinfer.constraints import write_json
from bulkinfer.errors import JobError
from bulkinfer.job import ClassifyTask, ExtractTask, JobSpec, PromptSpec, TaskSpec, find_nearest
from bulkinfer.records import JsonValue, Message, Request

SCHEME = "bulkinfer-task-1"
"""Goes up when the meaning of a task's fingerprint changes: old answers then no longer count as done."""

_NOT_ASKED = frozenset(
    {"document_hash", "origin", "num_chars", "attempt", "queued_at_s", "prefix_group"}
    | {"priority", "spans", "fields", "repairs", "image_files", "num_image_chars"}
)
"""What of a request says where it comes from and when it is asked."""

_WEIGHTS = re.compile(r".+\.(safetensors|bin|pt|pth|gguf)")
_READ_WHOLE = re.compile(
    r"(config|generation_config|added_tokens|.+\.index)\.json|(tokenizer|vocab|merges|special_tokens|chat_template).*"
    r"|.+\.(jinja|tiktoken|model|py)"
)
_FLOATS = frozenset({"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"})
_FILLED_LATER = frozenset({"logit_bias", "response_format"})
"""Columns that every job over OpenAI's batch files has got since: requests of before did not bring them."""
_SAMPLING_DEFAULTS: Mapping[str, JsonValue] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop": (),
    "seed": None,
}


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What tells one model from another."""

    model: str
    """The hub id, or the folder as it was given."""
    revision: str | None
    digest: str | None
    """Of a folder, 64 hex digits: it alone counts then, wherever the folder lies. None for a hub id."""


def hash_document(fields: Mapping[str, JsonValue]) -> bytes:
    """16 bytes that are equal for equal fields: of the canonical JSON, in which the order of keys does not count.

    1, 1.0, "1" and true differ, as do null and an absent field, and 0.0 and -0.0. NaN and infinities are no JSON values
    and must have been replaced before. Never raises for a JSON value, however deep, however long an integer, and with
    lone surrogates too.
    """
    return hash_canonical(write_canonical(fields))


def write_canonical(fields: Mapping[str, JsonValue]) -> bytes:
    """The canonical JSON of `hash_document`: no shorter than the texts in it, in UTF-8."""
    try:
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        # What orjson refuses: integers beyond 64 bits, lone surrogates, over 254 levels, mappings that are no dicts.
        return "".join(_iter_canonical(fields)).encode("utf-8", "surrogatepass")


def hash_canonical(canonical: bytes) -> bytes:
    """The second half of `hash_document`."""
    return hashlib.sha256(canonical).digest()[:16]


def hash_part(request: Request) -> bytes:
    """16 bytes that are equal for what asks the model the same, whichever document it comes from.

    Of all of a request that the model gets, as far as it is not empty: what requests get later changes no hash of one
    without it. The hash of a document is never among them.
    """
    asked = {name: value for name, value in _list_filled(request).items() if name not in _NOT_ASKED}
    asked["messages"] = [_list_filled(message) for message in request.messages]
    canonical = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS, default=bytes.hex)
    return hashlib.sha256(b"bulkinfer-part-1\n" + canonical).digest()[:16]


def fingerprint_task(spec: JobSpec, model: ModelIdentity, adapters: Mapping[str, str] | None = None) -> UUID:
    """The identity of all that can change an answer, apart from the document; `adapters`: the digest of each."""
    task: dict[str, JsonValue] = {
        "scheme": SCHEME,
        "kind": spec.task.kind,
        "model": ["folder", model.digest] if model.digest else ["hub", model.model, model.revision],
        "chat_template": spec.model.chat_template,
        "prompt": [spec.prompt.system, spec.prompt.user],
        "sampling": _normal_sampling(spec) if spec.writes_answers else None,
        "over_length": _describe_overlong(spec),
        # What came later is there only where a job has it: tasks from before keep their names.
        **_list_adapters(spec, adapters or {}),
        **_list_given(
            turns=_list_turns(spec.prompt),
            messages=spec.prompt.messages,
            reasoning=spec.output.reasoning,
            images=spec.prompt.images,
            # Cut answers must never count as done for a job that takes none.
            accept_truncated=(spec.output.accept_truncated and spec.writes_answers) or None,
        ),
    }
    # What other kinds of tasks add: a task from before there were any keeps its fingerprint.
    if templates := {key: text for key, text in spec.prompt.templates.items() if key not in {"system", "user"}}:
        task["templates"] = templates
    if options := _describe_options(spec.task):
        task["options"] = options
    if spec.engine.kind != "vllm":
        # Simulated answers are not the model's: they must never count as done for a real run on the same database.
        task["engine"] = spec.engine.kind
    return UUID(bytes=hashlib.sha256(orjson.dumps(task, option=orjson.OPT_SORT_KEYS)).digest()[:16])


def _describe_options(task: TaskSpec) -> dict[str, JsonValue]:
    """What besides its kind makes the task; nothing for a kind that says it all."""
    match task:
        case ExtractTask(answer_schema=dict(schema)):
            # As text: the order of keys counts, as an answer has them in the schema's order.
            return {"schema": write_json(schema)}
        case ClassifyTask(choices=choices):
            options = task.model_dump(mode="json", exclude={"kind", "choices"}, exclude_defaults=True)
            return {**options, "choices": sorted(choices)}
    return task.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)


def identify_model(model: str, revision: str | None) -> ModelIdentity:
    """What tells this model from another. `model` is an absolute path of a folder, else a hub id; see `Job.model`.

    Of a folder, configuration, tokenizer, chat template and code count with their contents, weights with name and size.
    Raises JobError when there is no such folder, or it does not hold a model.
    """
    folder = Path(model)
    if not folder.is_absolute():
        return ModelIdentity(model, revision, None)
    try:
        return ModelIdentity(model, revision, _digest_folder(folder))
    except FileNotFoundError:
        raise JobError(
            f"model.path: the folder {folder} does not exist{_suggest_folder(folder)}", "model.path"
        ) from None
    except NotADirectoryError:
        raise JobError(
            f"model.path: {folder} is not a folder; name the folder that holds config.json", "model.path"
        ) from None
    except OSError as error:
        raise JobError(f"model.path: {folder} cannot be read: {error.strerror}", "model.path") from None


def _list_filled(record: Request | Message) -> dict[str, object]:
    values = ((one.name, getattr(record, one.name)) for one in fields(record))
    return {name: value for name, value in values if value}


def _describe_overlong(spec: JobSpec) -> JsonValue:
    if spec.limits.overlong == "split":
        return ["split", spec.limits.overlap_tokens, spec.prompt.combine]
    return spec.limits.overlong


def _normal_sampling(spec: JobSpec) -> dict[str, JsonValue]:
    """With vLLM's defaults for what is not given, so that writing a default out changes nothing."""
    sampling = spec.sampling
    given: dict[str, JsonValue] = {**_SAMPLING_DEFAULTS, **sampling.to_engine()}
    if given["top_k"] == -1:
        given["top_k"] = 0
    if given.get("n") == 1:
        del given["n"]
    columns = {} if sampling.columns is None else sampling.columns.to_fields()
    filled_later = list_filled_later(spec)
    columns = {name: field for name, field in columns.items() if name not in filled_later}
    if columns:
        given["columns"] = columns
    # A temperature of 1 is one of 1.0, though not the same JSON.
    return {
        name: float(value) if name in _FLOATS and isinstance(value, int) else value for name, value in given.items()
    }


def list_filled_later(spec: JobSpec) -> frozenset[str]:
    """Fields that the job reads by these names, and that the same job file did not make one read before."""
    if spec.input.openai_url is None or spec.sampling.columns is None:
        return frozenset()
    return frozenset(name for name, field in spec.sampling.columns.to_fields().items() if name == field) & _FILLED_LATER


def _list_given(**values: JsonValue) -> dict[str, JsonValue]:
    return {name: value for name, value in values.items() if value is not None}


def _list_adapters(spec: JobSpec, digests: Mapping[str, str]) -> dict[str, JsonValue]:
    """The adapter of all documents by what is in it; where documents choose, all, by the names that they give."""
    if spec.model.adapter is not None:
        return {"adapter": digests[spec.model.adapter]}
    column = spec.model.adapter_column
    return {} if column is None else {"adapters": dict(digests), "adapter_column": column}


def _list_turns(prompt: PromptSpec) -> JsonValue:
    return None if prompt.turns is None else [[turn.role, turn.content] for turn in prompt.turns]


def _digest_folder(folder: Path) -> str:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    weights = [path for path in paths if _WEIGHTS.fullmatch(path.name)]
    _check_config(folder / "config.json")
    if not weights:
        raise JobError(
            f"model.path: no weights in {folder} (*.safetensors, *.bin, *.pt, *.gguf); is it downloaded in full?",
            "model.path",
        )
    digest = hashlib.sha256()
    for path in paths:
        if path in weights:
            digest.update(orjson.dumps(["weights", path.name, path.stat().st_size]))
        elif _READ_WHOLE.fullmatch(path.name):
            digest.update(orjson.dumps(["content", path.name, hashlib.sha256(path.read_bytes()).hexdigest()]))
    for path in _list_module_files(folder):
        name = str(path.relative_to(folder))
        if _WEIGHTS.fullmatch(path.name):
            digest.update(orjson.dumps(["weights", name, path.stat().st_size]))
        else:
            digest.update(orjson.dumps(["content", name, hashlib.sha256(path.read_bytes()).hexdigest()]))
    return digest.hexdigest()


def _list_module_files(folder: Path) -> list[Path]:
    """What says how an embedding model makes a vector of its tokens: another pooling is another model."""
    if not (folder / "modules.json").is_file():
        return []
    inner = (path for part in folder.glob("[0-9]*_*") if part.is_dir() for path in part.iterdir() if path.is_file())
    return sorted([folder / "modules.json", *folder.glob("sentence_*_config.json"), *inner])


def _check_config(path: Path) -> None:
    try:
        config = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise JobError(
            f"model.path: {path.parent} holds no config.json, so it is not a model folder", "model.path"
        ) from None
    except orjson.JSONDecodeError as error:
        raise JobError(f"model.path: {path} is not JSON (line {error.lineno})", "model.path") from None
    if not isinstance(config, dict) or not (config.get("architectures") or config.get("model_type")):
        raise JobError(
            f"model.path: {path} names neither architectures nor model_type, so it is not a model's", "model.path"
        )


def _suggest_folder(folder: Path) -> str:
    try:
        names = [path.name for path in folder.parent.iterdir() if path.is_dir()]
    except OSError:
        return f", nor does {folder.parent}" if not folder.parent.exists() else ""
    nearest = find_nearest(folder.name, names)
    return (
        f"; did you mean {folder.parent / nearest}?"
        if nearest
        else f"; {folder.parent} holds {len(names)} other folders"
    )


def _iter_canonical(value: JsonValue) -> Iterator[str]:
    """Pieces of the canonical JSON of a value, with a stack of its own instead of recursion."""
    # Texts come with their escapes, so no piece of one value can be read as another's.
    stack: list[JsonValue | _Raw] = [_Raw("\0"), value]
    stack.reverse()
    while stack:
        match top := stack.pop():
            case _Raw():
                yield top.text
            case Mapping():
                entries = [part for key in sorted(top) for part in (_Raw(f"{json.dumps(key)}:"), top[key], _Raw(","))]
                stack += reversed([_Raw("{"), *entries, _Raw("}")])
            case Sequence() if not isinstance(top, str):
                stack += reversed([_Raw("["), *(part for child in top for part in (child, _Raw(","))), _Raw("]")])
            case int() if not isinstance(top, bool):
                # Hexadecimal: decimal takes quadratic time, and Python refuses it beyond 4,300 digits.
                yield f"{top:#x}"
            case _:
                yield json.dumps(top)


@dataclass(frozen=True, slots=True)
class _Raw:
    """JSON's own signs, to be given out as they are."""

    text: str
