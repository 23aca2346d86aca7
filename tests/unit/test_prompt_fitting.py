"""What is cut fits to the token, is hardly shorter than it may be, and is found in few tries."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.prompt.cutting import MARKER, put_text
from bulkinfer.prompt.fitting import (
    MAX_TRIES,
    SLACK_TOKENS,
    Fitted,
    Split,
    Unfit,
    expect_parts,
    fit_prompt,
    split_prompt,
)
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
    # 60 bytes are too few for anything but the marker in the middle.
    for room in (200, 1_000, 20_000) if (way, policy) == ("bytes", MIDDLE) else (60, 200, 1_000, 20_000):
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
        assert fitted.num_tokens == least
        assert least > room or any(bodies), "there is room for the job's text, and for nothing of the document's"
        return
    assert fitted.num_tokens == count(fitted.messages) <= room
    again = fit(bodies, policy, room, count)
    assert again == fitted


def split(body: str, room: int, overlap_tokens: int, count: Counter, *others: str, tells: bool = True) -> Split | Unfit:
    messages, spans = make_prompt(*others, body)
    num_tokens = count(messages) if tells else None
    count.num_asked = 0
    return split_prompt(messages, spans, room, overlap_tokens, count, num_tokens)


def tokens_of(body: str, cut: tuple[int, int], count: Counter, *others: str) -> int:
    return count(make_prompt(*others, body[cut[0] : cut[1]])[0])


@pytest.mark.parametrize("way", ["words", "bytes", "characters"])
@pytest.mark.parametrize("tells", [True, False])
def test_parts_fit_overlap_and_end_with_sentences(way: str, tells: bool) -> None:
    body = "".join(f"Sentence {number} of ünicode 漢字 text. " for number in range(3_000))
    count = Counter(way)
    room = 300
    found = split(body, room, 30, count, tells=tells)
    assert isinstance(found, Split)
    assert count.num_asked <= 2.5 * len(found.cuts) + 5
    cuts = found.cuts
    assert (cuts[0][0], cuts[-1][1]) == (0, len(body))
    sizes = [tokens_of(body, cut, count) for cut in cuts]
    assert found.num_tokens >= max(sizes)
    assert max(sizes) <= room
    around = tokens_of("", (0, 0), count)
    assert min(sizes[:-1]) - around >= 0.65 * (room - around)
    for (start, end), (next_start, _) in pairwise(cuts):
        assert start < next_start < end
        assert count.count_text(body[next_start:end]) <= 34
        assert body[:end].endswith(". ")
        assert body[next_start - 1] == " "


def test_without_overlap_parts_follow_each_other() -> None:
    body = "word " * 4_000
    found = split(body, 200, 0, Counter("characters"))
    assert isinstance(found, Split)
    assert "".join(body[start:end] for start, end in found.cuts) == body


def test_an_overlap_takes_a_third_of_a_part_at_most() -> None:
    count = Counter("characters")
    found = split("word " * 4_000, 200, 10_000, count)
    assert isinstance(found, Split)
    assert all(2 * (end - next_start) <= end - start for (start, end), (next_start, _) in pairwise(found.cuts))


def test_a_text_that_is_printed_twice_is_cut_in_both_places() -> None:
    body = "word " * 1_000
    content = f"{body}|{body}"
    messages = (Message("user", content),)
    spans = (Span(0, 0, 5_000), Span(0, 5_001, 10_001))
    found = split_prompt(messages, spans, 200, 0, Counter("characters"))
    assert isinstance(found, Split)
    for start, end in found.cuts:
        assert Counter("characters")((Message("user", f"{body[start:end]}|{body[start:end]}"),)) <= 200


def test_what_else_is_in_the_prompt_may_leave_no_room() -> None:
    count = Counter("characters")
    unfit = split("b" * 4_000, 200, 0, count, "a" * 3_000)
    assert isinstance(unfit, Unfit)
    assert unfit.num_tokens is not None
    assert unfit.num_tokens > 200
    assert not unfit.is_too_many


@pytest.mark.parametrize(
    ("room", "left", "is_enough"),
    [(2_000, 31, False), (2_000, 32, True), (128, 31, False), (128, 32, True), (60, 14, False), (60, 15, True)],
)
def test_a_part_has_a_least_size_or_there_is_none(room: int, left: int, is_enough: bool) -> None:
    count = Counter("characters")
    messages, spans = make_prompt("b" * 40_000)
    num_own = room - left - count(put_text(messages, spans, ""))
    messages = (replace(messages[0], content=messages[0].content + "a" * 4 * num_own), *messages[1:])
    around = count(put_text(messages, spans, ""))
    assert room - around == left
    found = split_prompt(messages, spans, room, 0, count, count(messages))
    expected = expect_parts(count(messages), around, room, 0)
    if is_enough:
        assert isinstance(found, Split)
        assert expected is not None
        assert len(found.cuts) <= 10_000 / (0.7 * left) + 1
    else:
        assert found == Unfit(around)
        assert expected is None


@pytest.mark.parametrize("tells", [True, False])
def test_too_many_parts_are_refused(monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    monkeypatch.setattr("bulkinfer.prompt.fitting.MAX_PARTS", 10)
    count = Counter("characters")
    unfit = split("word " * 40_000, 200, 0, count, tells=tells)
    assert isinstance(unfit, Unfit)
    assert unfit.is_too_many
    assert count.num_asked <= 40


@given(
    st.text(st.sampled_from("ab. \né漢👍🏽\N{COMBINING ACUTE ACCENT}"), max_size=600),
    st.integers(0, 200),
    st.integers(0, 100),
    st.sampled_from(["words", "bytes", "characters", "lines"]),
)
def test_whatever_the_text_parts_cover_it_and_fit(body: str, room: int, overlap_tokens: int, way: str) -> None:
    count = Counter(way)
    found = split(body, room, overlap_tokens, count)
    if isinstance(found, Unfit):
        return
    reached = 0
    for start, end in found.cuts:
        assert start <= reached < end or not body
        assert tokens_of(body, (start, end), count) <= room
        reached = end
    assert reached == len(body)


def test_what_is_expected_of_parts_is_about_what_they_are() -> None:
    body = "".join(f"Sentence {number} is of some length. " for number in range(4_000))
    count = Counter("characters")
    messages, _ = make_prompt(body)
    found = split(body, 500, 40, count)
    assert isinstance(found, Split)
    asked = expect_parts(count(messages), tokens_of("", (0, 0), count), 500, 40)
    assert asked is not None
    assert asked[0] == pytest.approx(len(found.cuts), rel=0.1)
    assert asked[1] <= 500
    assert expect_parts(1_000, 500, 500, 40) is None
    assert expect_parts(10**9, 100, 500, 40) is None


@pytest.mark.parametrize("spare", range(6))
def test_a_cut_leaves_something_of_the_document_or_there_is_none(spare: int) -> None:
    count = Counter()
    text = "wordy " * 200
    content = f"{BEFORE}{text}{BEHIND}"
    messages = (Message("user", content),)
    span = Span(0, len(BEFORE), len(BEFORE) + len(text))
    around = count((Message("user", BEFORE + BEHIND),))
    found = fit_prompt(messages, [span], TAIL, around + spare, count)
    if spare == 0:
        assert found == Unfit(around)
    else:
        assert isinstance(found, Fitted)
        assert found.num_tokens <= around + spare
        assert "w" in found.messages[0].content.removeprefix(BEFORE).removesuffix(BEHIND)
