"""What a model thinks aloud before it answers, split off by one of vLLM's reasoning parsers. Does not import vLLM."""

import ast
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from bulkinfer.engines.answers import Answer
from bulkinfer.engines.simulated_arguments import suggest_name
from bulkinfer.errors import JobError

_REGISTRY = "_REASONING_PARSERS_TO_REGISTER"
_FAULTS = (ValueError, TypeError, LookupError, RuntimeError, AttributeError)
"""What a parser may raise on an answer that it does not understand."""

Extract = Callable[[str], tuple[str | None, str | None]]
"""Of a whole answer: the reasoning and the rest, each None where there is none."""


class UnreadableAnswer(Exception):
    """The parser failed on an answer. The message says why, without the answer's text."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A parser, ready for answers."""

    name: str
    extract: Extract
    needs_special_tokens: bool = False
    """Its marks are special tokens, which vLLM leaves out of an answer unless it is told not to."""

    def split(self, answer: Answer) -> Answer:
        """The answer without its reasoning, which stands beside it. Raises UnreadableAnswer."""
        try:
            reasoning, text = self.extract(answer.text)
        except _FAULTS as error:
            raise UnreadableAnswer(f"the reasoning parser {self.name} failed on it: {type(error).__name__}") from error
        return replace(answer, text=text or "", reasoning=reasoning or None)


def check_parser(name: str | None) -> None:
    """Refuse a parser that the installed vLLM does not have; without vLLM none is refused. Raises JobError."""
    known = list_parsers()
    if name is not None and known and name not in known:
        near = suggest_name(name, known)
        raise JobError(f"output.reasoning: this vLLM has no reasoning parser {name}{near} (known: {', '.join(known)})")


def list_parsers(package: str = "vllm") -> tuple[str, ...]:
    """The names of the parsers that the installed vLLM brings; none where that cannot be told.

    Read from its source: importing it takes seconds.
    """
    with suppress(ImportError, ValueError, OSError, SyntaxError):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            return _read_names(Path(folder) / "reasoning" / "__init__.py")
    return ()


def _read_names(path: Path) -> tuple[str, ...]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == _REGISTRY for one in node.targets
        ):
            return tuple(sorted(ast.literal_eval(node.value)))
    return ()
