"""How many tokens prompt and answer may have together, as far as that is known before an engine is started."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from bulkinfer.engines import find_config
from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.simulated import AUTO_MAX_CONTEXT_TOKENS


class ContextOrigin(StrEnum):
    """Who sets the context."""

    JOB = "job"
    SIMULATED = "simulated"
    MODEL = "model"
    """What it can take; where memory is short, a run takes less."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Context:
    """Of one sequence."""

    tokens: int | None
    """None where nothing is known."""
    origin: ContextOrigin

    @property
    def is_certain(self) -> bool:
        """Whether a run has this very limit."""
        return self.origin in {ContextOrigin.JOB, ContextOrigin.SIMULATED}


def find_context(spec: EngineSpec) -> Context:
    """The limit of the job; else what the simulated engine has, or what the model's own config says that it can do.

    Of a hub id, the config that was downloaded before is read.
    """
    if spec.max_context_tokens is not None:
        return Context(spec.max_context_tokens, ContextOrigin.JOB)
    if spec.kind == "simulated":
        return Context(AUTO_MAX_CONTEXT_TOKENS, ContextOrigin.SIMULATED)
    path = find_config(spec)
    found = None if path is None else _read_context(path)
    return Context(found, ContextOrigin.UNKNOWN if found is None else ContextOrigin.MODEL)


def _read_context(path: Path) -> int | None:
    try:
        config = orjson.loads(path.read_bytes())
        found = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
