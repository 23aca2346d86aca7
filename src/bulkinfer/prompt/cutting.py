"""Cuts those stretches of a prompt that the document brought, and leaves the job's own text alone. Counts no tokens.

A text is cut between characters as people see them: not before a combining mark, within a joined emoji, or within a
line end of two.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bulkinfer.records import Message, Overlong, Span

MARKER = " […] "
"""Stands where the middle was."""

_BORDERS = tuple(map(re.compile, (r"\n\s*\n", r"(?<=[.!?])\s+|(?<=[。！？])|\n", r"\s+")))  # noqa: RUF001 - Chinese
"""Where a text is best cut, the best first: behind a paragraph, a sentence or line, a word."""
_JOINER = "\N{ZERO WIDTH JOINER}"
_EXTENDING = frozenset(f"{_JOINER}\N{VARIATION SELECTOR-15}\N{VARIATION SELECTOR-16}🏻🏼🏽🏾🏿")
_MAX_MARKS = 16
"""So far a cut is moved for the sake of one character; there are texts that consist of marks alone."""


def cap_spans(
    messages: Sequence[Message], spans: Sequence[Span], num_chars: int, policy: Overlong
) -> tuple[Message, ...]:
    """No span longer than `num_chars` characters: so the longest are cut first, and down to one length.

    `policy` is one of those that truncate. With 0 all spans are empty.
    """
    return _rewrite(messages, ((span, cut_text(_text_of(messages, span), num_chars, policy)) for span in spans))


def cut_text(text: str, num_chars: int, policy: Overlong) -> str:
    """At most `num_chars` characters of a text, and a marker where its middle was."""
    if len(text) <= num_chars:
        return text
    if num_chars == 0:
        return ""
    if policy is Overlong.TRUNCATE_MIDDLE:
        num_first = (num_chars + 1) // 2
        return text[: _move_back(text, num_first)] + MARKER + text[_move_on(text, len(text) - num_chars + num_first) :]
    if policy is Overlong.TRUNCATE_HEAD:
        return text[_move_on(text, len(text) - num_chars) :]
    return text[: _move_back(text, num_chars)]


def find_longest(messages: Sequence[Message], spans: Sequence[Span]) -> tuple[str, tuple[Span, ...]]:
    """The longest text that the document brought, and every place where it stands: a field may be printed twice."""
    longest = max(spans, key=lambda span: span.end - span.start)
    text = _text_of(messages, longest)
    return text, tuple(span for span in spans if _text_of(messages, span) == text)


def put_text(messages: Sequence[Message], places: Sequence[Span], text: str) -> tuple[Message, ...]:
    """The messages with another text in these places."""
    return _rewrite(messages, ((place, text) for place in places))


def find_end(text: str, start: int, at: int) -> int:
    """Where a part that begins at `start` may end: at a border in its last seventh, else at a character, else at `at`.

    Behind `start`, and not behind `at`.
    """
    if at >= len(text):
        return len(text)
    earliest = at - (at - start) // 7
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(text, earliest, at)]
        if ends:
            return ends[-1]
    moved = _move_back(text, at)
    return moved if moved > start else at


def find_start(text: str, at: int, end: int) -> int:
    """Where the part after one that ends at `end` may begin: at a border in the first half of what is to overlap.

    `at` is the earliest place. Not behind `end`.
    """
    latest = at + (end - at) // 2
    for border in _BORDERS[1:]:
        found = border.search(text, at, latest)
        if found is not None and found.end() > at:
            return found.end()
    return min(_move_on(text, at), end)


def _rewrite(messages: Sequence[Message], texts: Iterable[tuple[Span, str]]) -> tuple[Message, ...]:
    """Spans of one message come in order and do not overlap."""
    pieces: dict[int, list[str]] = {}
    ends: dict[int, int] = {}
    for span, text in texts:
        before = messages[span.message].content[ends.get(span.message, 0) : span.start]
        pieces.setdefault(span.message, []).extend((before, text))
        ends[span.message] = span.end
    return tuple(
        replace(message, content="".join((*pieces[index], message.content[ends[index] :])))
        if index in pieces
        else message
        for index, message in enumerate(messages)
    )


def _text_of(messages: Sequence[Message], span: Span) -> str:
    return messages[span.message].content[span.start : span.end]


def _move_back(text: str, at: int) -> int:
    """The nearest place before or at `at` where a character begins."""
    return next((place for place in range(at, max(0, at - _MAX_MARKS), -1) if not _is_within(text, place)), at)


def _move_on(text: str, at: int) -> int:
    """The nearest place behind or at `at` where a character begins."""
    last = min(len(text), at + _MAX_MARKS)
    return next((place for place in range(at, last + 1) if not _is_within(text, place)), at)


def _is_within(text: str, at: int) -> bool:
    """Whether what stands at `at` belongs to the character before it."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if after.isascii():
        return before == "\r" and after == "\n"
    return after in _EXTENDING or before == _JOINER or unicodedata.combining(after) != 0
