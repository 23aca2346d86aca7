"""Cuts: what stays, what goes, and that no character is halved."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulkinfer.prompt.cutting import MARKER, cap_spans, cut_text
from bulkinfer.records import Message, Overlong, Span

HEAD, MIDDLE, TAIL = Overlong.TRUNCATE_HEAD, Overlong.TRUNCATE_MIDDLE, Overlong.TRUNCATE_TAIL
POLICIES = (HEAD, MIDDLE, TAIL)
FAMILY = "👨‍👩‍👧"  # three people and two joiners
texts = st.text(st.sampled_from("ab \n\r\N{COMBINING ACUTE ACCENT}é漢👍🏽\N{ZERO WIDTH JOINER}👩"), max_size=40)


@pytest.mark.parametrize(
    ("policy", "num_chars", "expected"),
    [
        (HEAD, 4, "6789"),
        (TAIL, 4, "0123"),
        (MIDDLE, 4, f"01{MARKER}89"),
        (MIDDLE, 5, f"012{MARKER}89"),
        (MIDDLE, 1, f"0{MARKER}"),
        (HEAD, 0, ""),
        (TAIL, 0, ""),
        (MIDDLE, 0, ""),
        (HEAD, 10, "0123456789"),
        (TAIL, 11, "0123456789"),
        (MIDDLE, 10, "0123456789"),
    ],
)
def test_what_stays_of_a_text(policy: Overlong, num_chars: int, expected: str) -> None:
    assert cut_text("0123456789", num_chars, policy) == expected


@pytest.mark.parametrize(
    ("text", "policy", "num_chars", "expected"),
    [
        ("cafe\N{COMBINING ACUTE ACCENT}s", TAIL, 4, "caf"),
        ("cafe\N{COMBINING ACUTE ACCENT}s", HEAD, 2, "s"),
        (f"a{FAMILY}", TAIL, 3, "a"),
        (f"{FAMILY}b", HEAD, 3, "b"),
        ("x👍🏽y", TAIL, 2, "x"),
        ("one\r\ntwo", TAIL, 4, "one"),
        ("漢字漢字", TAIL, 3, "漢字漢"),
        ("e" + "\N{COMBINING ACUTE ACCENT}" * 100, TAIL, 50, "e" + "\N{COMBINING ACUTE ACCENT}" * 49),
    ],
)
def test_no_character_is_cut_in_two(text: str, policy: Overlong, num_chars: int, expected: str) -> None:
    assert cut_text(text, num_chars, policy) == expected


@given(texts, st.integers(0, 45), st.sampled_from(POLICIES))
def test_a_cut_keeps_ends_of_the_text_and_no_more_than_it_may(text: str, num_chars: int, policy: Overlong) -> None:
    found = cut_text(text, num_chars, policy)
    found.encode()
    if len(text) <= num_chars:
        assert found == text
        return
    begin, marker, end = found.partition(MARKER) if policy is MIDDLE else (found, "", "")
    assert len(begin) + len(end) <= num_chars
    assert text.startswith(begin) if policy is not HEAD else text.endswith(begin)
    assert text.endswith(end)
    assert bool(marker) == (policy is MIDDLE and num_chars > 0)
    if policy is TAIL and found and num_chars > 16:
        rest = text[len(found) :]
        assert unicodedata.combining(rest[0]) == 0


def test_the_longest_span_is_cut_first_and_the_job_s_text_never() -> None:
    user = "Subject: short\nBody: " + "b" * 50 + "\nNotes: " + "n" * 30 + "\nAnswer."
    spans = (Span(1, 9, 14), Span(1, 21, 71), Span(1, 79, 109))
    messages = (Message("system", "Be brief."), Message("user", user))
    system, cut = cap_spans(messages, spans, 40, TAIL)
    assert system == messages[0]
    assert cut.content == "Subject: short\nBody: " + "b" * 40 + "\nNotes: " + "n" * 30 + "\nAnswer."
    _, cut = cap_spans(messages, spans, 10, HEAD)
    assert cut.content == "Subject: short\nBody: " + "b" * 10 + "\nNotes: " + "n" * 10 + "\nAnswer."
    _, cut = cap_spans(messages, spans, 0, MIDDLE)
    assert cut.content == "Subject: \nBody: \nNotes: \nAnswer."


def test_spans_of_several_messages_are_cut_each_where_it_stands() -> None:
    messages = (Message("system", "<aaaa>"), Message("user", "[bbbb] [cc]"))
    spans = (Span(0, 1, 5), Span(1, 1, 5), Span(1, 8, 10))
    assert cap_spans(messages, spans, 1, TAIL) == (Message("system", "<a>"), Message("user", "[b] [c]"))
    assert cap_spans(messages, (), 0, TAIL) == messages
