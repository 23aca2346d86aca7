"""What a model thinks aloud before it answers, split off by one of vLLM's reasoning parsers. Does not import vLLM."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from bulkinfer.engines.answers import Answer
from bulkinfer.engines.simulated_arguments import suggest_name
from bulkinfer.engines.vllm_source import read_assigned_names
from bulkinfer.errors import JobError

_REGISTRY = "_REASONING_PARSERS_TO_REGISTER"
_FAULTS = (ValueError, TypeError, LookupError, RuntimeError, AttributeError)
"""What a parser may raise on an answer that it does not understand."""

Extract = Callable[[str], tuple[str | None, str | None]]
"""Of a whole answer: the reasoning and the rest, each None where there is none."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A parser, ready for answers."""

    name: str
    extract: Extract
    needs_special_tokens: bool = False
    """Its marks are special tokens, which vLLM leaves out of an answer unless it is told not to."""

    def split(self, answer: Answer) -> Answer:
        """The answer without its reasoning, which stands beside it; one that the parser fails on as a whole."""
        try:
            reasoning, text = self.extract(answer.text)
        except _FAULTS as error:
            return replace(answer, fault=f"the reasoning parser {self.name} failed on it: {type(error).__name__}")
        return replace(answer, text=text or "", reasoning=reasoning or None)


def check_parser(name: str | None) -> None:
    """Refuse a parser that the installed vLLM does not have; without vLLM none is refused. Raises JobError."""
    known = list_parsers()
    if name is not None and known and name not in known:
        near = suggest_name(name, known)
        raise JobError(
            f"output.reasoning: this vLLM has no reasoning parser {name}{near} (known: {', '.join(known)})",
            "output.reasoning",
        )


def list_parsers(package: str = "vllm") -> tuple[str, ...]:
    """The names of the parsers that the installed vLLM brings; none where that cannot be told."""
    return read_assigned_names("reasoning/__init__.py", _REGISTRY, package)
