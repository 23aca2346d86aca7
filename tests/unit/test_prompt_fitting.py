"""What is cut fits to the token, is hardly shorter than it may be, and is found in few tries."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.prompt.cutting import MARKER
from bulkinfer.prompt.fitting import MAX_TRIES, SLACK_TOKENS, Fitted, Unfit, fit_prompt
from bulkinfer.records import Message, Overlong, Span

HEAD, MIDDLE, TAIL = Overlong.TRUNCATE_HEAD, Overlong.TRUNCATE_MIDDLE, Overlong.TRUNCATE_TAIL
BEFORE, BEHIND = "Summarise this:\n", "\nIn one sentence."


class Counter:
    """Counts tokens in one way or another, and how often it was asked."""

    def __init__(self, way: str = "words") -> None:
        self.way = way
        self.num_asked = 0

    def __call__(self, messages: Sequence[Message]) -> int:
        self.num_asked += 1
        return sum(4 + self.count_text(message.content) for message in messages)

    def count_text(self, text: str) -> int:
        match self.way:
            case "words":  # a token for each begun 5 letters of a word
                return sum(-(-len(word) // 5) for word in re.findall(r"\w+|[^\w\s]", text))
            case "bytes":
                return len(text.encode())
            case "characters":
                return -(-len(text) // 4)
            case "lines":  # all of a line at once: it jumps
                return 7 * text.count("\n") + len(text) // 100
        raise AssertionError(self.way)


def make_prompt(*bodies: str) -> tuple[tuple[Message, ...], tuple[Span, ...]]:
    content, spans = BEFORE, []
    for body in bodies:
        spans.append(Span(1, len(content), len(content) + len(body)))
        content += body + "\n--\n"
    return (Message("system", "You are brief."), Message("user", content + BEHIND)), tuple(spans)


def fit(bodies: Sequence[str], policy: Overlong, room: int, count: Counter, *, tells: bool = True) -> Fitted | Unfit:
    messages, spans = make_prompt(*bodies)
    num_tokens = count(messages) if tells else None
    count.num_asked = 0
    return fit_prompt(messages, spans, policy, room, count, num_tokens)


@pytest.mark.parametrize("policy", [HEAD, MIDDLE, TAIL])
@pytest.mark.parametrize("way", ["words", "bytes", "characters"])
@pytest.mark.parametrize("tells", [True, False])
def test_it_fits_and_hardly_a_token_is_left(policy: Overlong, way: str, tells: bool) -> None:
    body = " ".join(f"word{number} of ünicode 漢字 text" for number in range(5_000))
    count = Counter(way)
    for room in (60, 200, 1_000, 20_000):
        fitted = fit([body], policy, room, count, tells=tells)
        assert isinstance(fitted, Fitted)
        assert fitted.num_tokens == count(fitted.messages)
        assert room - SLACK_TOKENS - 4 <= fitted.num_tokens <= room
        assert count.num_asked <= 12
        content = fitted.messages[1].content
        assert content.startswith(BEFORE)
        assert content.endswith(BEHIND)
        kept = content.removeprefix(BEFORE).removesuffix("\n--\n" + BEHIND)
        begin, _, end = kept.partition(MARKER)
        assert body.startswith(kept) if policy is TAIL else body.endswith(end or kept)
        assert policy is not MIDDLE or (body.startswith(begin) and abs(len(begin) - len(end)) <= 2)


def test_fields_give_way_in_turn_the_longest_first() -> None:
    count = Counter("characters")
    fitted = fit(["a" * 100, "b" * 4_000, "c" * 1_000], TAIL, 600, count)
    assert isinstance(fitted, Fitted)
    content = fitted.messages[1].content
    assert content.count("a" * 100) == 1
    assert content.count("c" * 1_000) == 1
    assert 1_000 < content.count("b") < 1_300
    fitted = fit(["a" * 100, "b" * 4_000, "c" * 1_000], TAIL, 60, count)
    assert isinstance(fitted, Fitted)
    lengths = [len(text) for text in re.findall(r"a{9,}|b{9,}|c{9,}", fitted.messages[1].content)]
    assert len(lengths) == 3
    assert len(set(lengths)) == 1


def test_what_does_not_fit_without_the_document_is_not_cut() -> None:
    count = Counter("characters")
    unfit = fit(["a" * 10_000], TAIL, 15, count)
    assert unfit == Unfit(count(make_prompt("")[0]))
    assert fit_prompt((Message("user", "x"),), (), TAIL, 1, lambda _: None) == Unfit(None)


@given(
    st.lists(st.text(st.sampled_from("ab \né漢👍🏽\N{COMBINING ACUTE ACCENT}"), max_size=400), min_size=1, max_size=6),
    st.integers(0, 400),
    st.sampled_from([HEAD, MIDDLE, TAIL]),
    st.sampled_from(["words", "bytes", "characters", "lines"]),
)
def test_whatever_the_text_it_fits_or_says_that_it_cannot(
    bodies: list[str], room: int, policy: Overlong, way: str
) -> None:
    count = Counter(way)
    fitted = fit(bodies, policy, room, count)
    assert count.num_asked <= MAX_TRIES
    least = count(make_prompt(*("" for _ in bodies))[0])
    if isinstance(fitted, Unfit):
        assert fitted.num_tokens == least > room
        return
    assert fitted.num_tokens == count(fitted.messages) <= room
    again = fit(bodies, policy, room, count)
    assert again == fitted
