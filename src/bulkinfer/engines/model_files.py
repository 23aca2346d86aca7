"""What the small files of a model folder say that the model is for, and how long its texts may be. Imports no model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.vllm_reading import find_cached_folder
from bulkinfer.errors import JobError

_WRITERS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ChatModel")
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
_ENCODER_WORDS = ("bert", "mpnet", "electra")
"""Of architectures that read in both directions; those that also write are named as writers are."""
_SAID_OTHERWISE = frozenset({"runner", "convert", "hf_overrides"})
"""Arguments of vLLM by which a job says itself what the model is to be."""


def find_folder(spec: EngineSpec) -> Path | None:
    """The model's folder, or that of a hub id where it was downloaded before. Asks no network."""
    if Path(spec.model).is_dir():
        return Path(spec.model)
    try:
        return find_cached_folder(spec.model, spec.revision)
    except ImportError:  # there is no hub without its client
        return None


def check_purpose(spec: EngineSpec) -> None:
    """Refuse a model that is not made for the task, as far as its files are here and say so. Raises JobError."""
    folder = find_folder(spec)
    if spec.kind != "vllm" or folder is None or not _SAID_OTHERWISE.isdisjoint(spec.arguments):
        return
    config = _read_json(folder / "config.json")
    architecture, embeds = _find_architecture(config), is_embedding_model(folder)
    if architecture is None:
        return
    if spec.task == "embed":
        fault = _find_fault_of_embedding(architecture, embeds=embeds)
    elif spec.task == "score":
        fault = _find_fault_of_scoring(architecture, config, embeds=embeds)
    else:
        fault = _find_fault_of_writing(architecture, embeds=embeds)
    if fault is not None:
        raise JobError(f"model.path: {spec.model}: {fault}", "model.path")


def is_embedding_model(folder: Path) -> bool:
    """Whether it says how vectors are made of its tokens, as sentence-transformers do."""
    modules = _read_json(folder / "modules.json")
    types = [module.get("type") for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    return any(str(kind).endswith("Pooling") for kind in types)


def is_cross_encoder(folder: Path) -> bool:
    """Whether it has a head that judges a pair; otherwise pairs are scored by two vectors."""
    architecture = _find_architecture(_read_json(folder / "config.json"))
    return architecture is not None and architecture.endswith(_CLASSIFIERS)


def read_max_tokens(folder: Path, *, is_pooling: bool) -> int | None:
    """The most tokens of one text, prompt and answer together; None where the files do not say."""
    config = _read_json(folder / "config.json")
    if not isinstance(config, dict):
        return None
    inner = config.get("text_config")
    within = inner.get("max_position_embeddings") if isinstance(inner, dict) else None
    found = [config.get("max_position_embeddings") or within]
    # As vLLM does: what sentence-transformers cut at is a limit, and goes before the model's own.
    for path in sorted(folder.glob("sentence_*_config.json")):
        sentences = _read_json(path)
        if isinstance(sentences, dict) and isinstance(sentences.get("max_seq_length"), int):
            return int(sentences["max_seq_length"])
    if is_pooling and config.get("position_embedding_type") == "absolute":
        tokenizer = _read_json(folder / "tokenizer_config.json")
        found.append(tokenizer.get("model_max_length") if isinstance(tokenizer, dict) else None)
    known = [limit for limit in found if isinstance(limit, int) and not isinstance(limit, bool)]
    return min(known, default=None)


def _find_architecture(config: object) -> str | None:
    names = config.get("architectures") if isinstance(config, dict) else None
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _find_fault_of_writing(architecture: str, *, embeds: bool) -> str | None:
    is_encoder = any(word in architecture.lower() for word in _ENCODER_WORDS) and not architecture.endswith(_WRITERS)
    if not (embeds or is_encoder or architecture.endswith(_CLASSIFIERS)):
        return None
    kind = "score" if architecture.endswith(_CLASSIFIERS) else "embed"
    return f"{architecture} writes no answers here; name a model that does, or write task: {{kind: {kind}}}"


def _find_fault_of_embedding(architecture: str, *, embeds: bool) -> str | None:
    if architecture.endswith(_CLASSIFIERS):
        return f"{architecture} has a classification head and makes no vectors; name an embedding model"
    return None if embeds else _find_fault_of_writer(architecture)


def _find_fault_of_scoring(architecture: str, config: Mapping[str, Any], *, embeds: bool) -> str | None:
    if not architecture.endswith(_CLASSIFIERS):
        return None if embeds else _find_fault_of_writer(architecture)
    num_labels = _count_labels(config)
    if num_labels == 1:
        return None
    return f"{architecture} has {num_labels} labels: expected one, whose number is the score"


def _find_fault_of_writer(architecture: str) -> str | None:
    if not architecture.endswith(_WRITERS):
        return None
    return (
        f"{architecture} writes answers, and no modules.json says how vectors are made of its tokens; name an "
        "embedding model, or set engine.vllm.convert: embed to take the last token's state all the same"
    )


def _count_labels(config: Mapping[str, Any]) -> int:
    names, number = config.get("id2label"), config.get("num_labels")
    if isinstance(names, Mapping | Sequence) and names:
        return len(names)
    return number if isinstance(number, int) else 2  # as transformers


def _read_json(path: Path) -> Any:  # noqa: ANN401 - whatever a model's files hold
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
