"""Reasoning is split off an answer, and a parser that does not exist is told before a model is loaded."""

from pathlib import Path

import pytest

from bulkinfer.engines import reasoning
from bulkinfer.engines.answers import Answer
from bulkinfer.engines.reasoning import Reasoning, check_parser, list_parsers
from bulkinfer.engines.vllm_reading import read_outcome
from bulkinfer.errors import JobError
from bulkinfer.records import Completion
from tests.unit.test_engines_answers import vllm_answer, vllm_output


def extract(text: str) -> tuple[str | None, str | None]:
    """As a parser with the mark `</think>` does."""
    thought, mark, rest = text.partition("</think>")
    if thought == "broken":
        raise RuntimeError("secret")
    return (thought or None, rest or None) if mark else (thought, None)


PARSER = Reasoning("marks", extract)


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("2 and 2</think>4", "2 and 2", "4"),
        ("</think>4", None, "4"),
        ("2 and", "2 and", ""),
        ("2 and 2</think>", "2 and 2", ""),
    ],
)
def test_an_answer_is_what_is_left(text: str, thought: str | None, rest: str) -> None:
    answer = PARSER.split(Answer(text, "stop", 3))
    assert (answer.reasoning, answer.text, answer.output_tokens) == (thought, rest, 3)


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_what_a_parser_fails_on_comes_whole_and_with_the_fault(reason: str) -> None:
    found = read_outcome(vllm_output(vllm_answer("broken</think>4", reason)), 1.0, PARSER)
    assert isinstance(found, Completion)
    assert found.fault == "the reasoning parser marks failed on it: RuntimeError"
    assert (found.text, found.finish_reason, found.output_tokens, found.prompt_tokens) == (
        "broken</think>4",
        reason,
        2,
        2,
    )
    assert found.details is None


def test_of_several_answers_the_one_that_a_parser_fails_on_has_the_fault() -> None:
    answers = vllm_answer("a</think>b", "stop"), vllm_answer("broken</think>d", "stop")
    found = read_outcome(vllm_output(*answers), 1.0, PARSER)
    assert isinstance(found, Completion)
    fault = "the reasoning parser marks failed on it: RuntimeError"
    assert found.fault == fault
    assert found.details == {
        "outputs": [
            {"text": "b", "finish_reason": "stop", "output_tokens": 2},
            {"text": "broken</think>d", "finish_reason": "stop", "output_tokens": 2, "fault": fault},
        ],
        "reasoning": ["a", None],
    }


def test_each_of_several_answers_has_its_own_reasoning() -> None:
    answers = vllm_answer("a</think>b", "stop"), vllm_answer("c</think>d", "stop")
    found = read_outcome(vllm_output(*answers), 1.0, PARSER)
    assert isinstance(found, Completion)
    assert found.text == "b"
    assert found.details is not None
    assert found.details["reasoning"] == ["a", "c"]


def write_package(folder: Path, registry: str) -> None:
    (folder / "a_package_of_parsers" / "reasoning").mkdir(parents=True)
    (folder / "a_package_of_parsers" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "a_package_of_parsers" / "reasoning" / "__init__.py").write_text(registry)


@pytest.mark.parametrize(
    ("registry", "names"),
    [
        ('import x\n_REASONING_PARSERS_TO_REGISTER = {\n"b": ("m", "C"),\n"a": ("m", "D"),\n}\n', ("a", "b")),
        ("_REASONING_PARSERS_TO_REGISTER = make()", ()),
        ("other = {}", ()),
        ("not python", ()),
    ],
)
def test_names_are_read_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str, names: tuple[str, ...]
) -> None:
    write_package(tmp_path, registry)
    monkeypatch.syspath_prepend(tmp_path)
    assert list_parsers("a_package_of_parsers") == names


def test_without_the_package_there_are_no_names() -> None:
    assert list_parsers("no_such_package_anywhere") == ()


def test_a_parser_that_vllm_lacks_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning, "list_parsers", lambda: ("deepseek_r1", "qwen3"))
    check_parser(None)
    check_parser("qwen3")
    with pytest.raises(JobError) as caught:
        check_parser("qwen")
    expected = (
        'output.reasoning: this vLLM has no reasoning parser qwen; did you mean "qwen3"? (known: deepseek_r1, qwen3)'
    )
    assert str(caught.value) == expected
    monkeypatch.setattr(reasoning, "list_parsers", tuple)
    check_parser("anything")
