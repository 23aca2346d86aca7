"""How many tokens prompt and answer may have together, as far as that is known before an engine is started."""

from dataclasses import dataclass
from enum import StrEnum

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.model_files import find_folder, read_max_tokens
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
    folder = find_folder(spec)
    found = None if folder is None else read_max_tokens(folder, is_pooling=spec.is_pooling)
    return Context(found, ContextOrigin.UNKNOWN if found is None else ContextOrigin.MODEL)
