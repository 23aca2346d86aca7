"""How much of a document fits into a prompt: found by counting tokens, in few tries. Knows no engine.

Whoever asks brings a function that counts the tokens of messages as the engine does, chat template included, so that
what is found fits to the token. More characters are taken for at least as many tokens: where that is not so (a word cut
in the middle may have more tokens than the whole), what is found still fits, and is a few tokens shorter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bulkinfer.prompt.cutting import cap_spans, find_end, find_longest, find_start, put_text
from bulkinfer.records import Message, Overlong, Span

Count = Callable[[tuple[Message, ...]], int | None]
"""Tokens of a prompt; None for one that the engine refuses."""

MAX_TRIES = 24
"""Counts for one cut. Most need four or five; by halving alone this finds one character in 16 million."""
SLACK_TOKENS = 2
"""A cut that leaves no more of the room than this is long enough."""
MAX_PARTS = 10_000
"""Of one document."""

_USUAL_CHARS_PER_TOKEN = 4.0
_LEAST_FILL = 0.7
"""Of its room a part takes at least this, if it is not the last; its end is moved back to the end of a sentence."""
_AIMED_FILL = 0.96
_USUAL_FILL = 0.93
"""What they take, once their ends are moved back."""
_LEAST_PART = 32
"""Tokens of its own that a part may have at least, or a quarter of a prompt where that is less: with fewer there were
thousands of parts, each hardly more than the job's own text."""
_MAX_OVERLAP = 3
"""An overlap takes up to a third of a part's room: otherwise the parts would hardly move on."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that is cut so that it fits."""

    messages: tuple[Message, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Split:
    """Where the longest text of a prompt is cut into parts that each fit."""

    cuts: tuple[tuple[int, int], ...]
    """Start and end of each part, in characters of that text. Each begins at or before the end of the one before."""
    num_tokens: int
    """Of the longest of the prompts."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Cutting does not help."""

    num_tokens: int | None
    """Of what is not cut; None where the engine refuses it."""
    is_too_many: bool = False
    """There would be more parts than MAX_PARTS."""


def fit_prompt(
    messages: Sequence[Message],
    spans: Sequence[Span],
    policy: Overlong,
    room: int,
    count: Count,
    num_tokens: int | None = None,
) -> Fitted | Unfit:
    """Truncate the spans of a prompt that is too long so that it has at most `room` tokens, and hardly fewer.

    `num_tokens` of the whole, if they are known, save a try or two.
    """
    longest = max((span.end - span.start for span in spans), default=0)
    low, high = 0, longest
    best = cap_spans(messages, spans, low, policy)
    num_low, num_high = count(best), num_tokens
    if num_low is None or num_low > room:
        return Unfit(num_low)
    for attempt in range(1, MAX_TRIES):
        if high - low <= 1 or (low and room - num_low <= SLACK_TOKENS):
            break
        guess = low + round(_guess(high - low, room - num_low, None if num_high is None else num_high - num_low))
        if attempt % 3 == 0:  # whatever the text is like, it ends
            guess = (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        capped = cap_spans(messages, spans, guess, policy)
        found = count(capped)
        if found is not None and found <= room:
            low, num_low, best = guess, found, capped
        else:
            high, num_high = guess, found
    # With nothing left of the document the model would answer the instructions alone.
    return Fitted(best, num_low) if low or not longest else Unfit(num_low)


def _guess(num_chars: int, room: int, num_tokens: int | None) -> float:
    """How many of the next characters take `room` tokens, if they all take `num_tokens`; a token is left free."""
    if num_tokens is None or num_tokens <= 0:
        return _USUAL_CHARS_PER_TOKEN * room
    return num_chars * (room - 1) / num_tokens


def split_prompt(
    messages: Sequence[Message],
    spans: Sequence[Span],
    room: int,
    overlap_tokens: int,
    count: Count,
    num_tokens: int | None = None,
) -> Split | Unfit:
    """Cut the longest text that the document brought into parts, each of which fits with all else in the prompt.

    Parts end behind a paragraph, a sentence or a word where there is one, and overlap by about `overlap_tokens`.
    `num_tokens` of the whole prompt tell how many parts there will be, if they are known.
    """
    text, places = find_longest(messages, spans)
    around = count(put_text(messages, places, ""))
    if around is None or room - around < _least_part(room):
        return Unfit(around)
    splitting = _Splitting(messages, text, places, room, around, count)
    overlap_tokens = min(overlap_tokens, splitting.budget // _MAX_OVERLAP)
    if num_tokens is not None and num_tokens - around > MAX_PARTS * (splitting.budget - overlap_tokens):
        return Unfit(around, is_too_many=True)
    if num_tokens is not None and num_tokens > around:
        splitting.chars_per_token = len(text) / (num_tokens - around)
    cuts: list[tuple[int, int]] = []
    start = 0
    while True:
        end = splitting.find_end(start)
        if end is None:
            return Unfit(around)
        cuts.append((start, end))
        if end == len(text):
            return Split(tuple(cuts), splitting.longest)
        if len(cuts) == MAX_PARTS:
            return Unfit(around, is_too_many=True)
        num_chars = min(int(overlap_tokens * splitting.chars_per_token), (end - start) // 2)
        start = find_start(text, end - num_chars, end) if num_chars else end


def expect_parts(num_tokens: int, around: int, room: int, overlap_tokens: int) -> tuple[int, int] | None:
    """About how many parts `split_prompt` makes, and the tokens of each prompt, without looking at the text.

    `around`: tokens of the prompt without the text that is split. None where there would be none, or too many.
    """
    budget = room - around
    if budget < _least_part(room):
        return None
    overlap_tokens = min(overlap_tokens, budget // _MAX_OVERLAP)
    step = max(1, round(_USUAL_FILL * budget) - overlap_tokens)
    num_parts = max(2, -(-(num_tokens - around - overlap_tokens) // step))
    if num_parts > MAX_PARTS:
        return None
    return num_parts, around + (num_tokens - around + (num_parts - 1) * overlap_tokens) // num_parts


def _least_part(room: int) -> int:
    return max(1, min(_LEAST_PART, room // 4))


@dataclass(slots=True)
class _Splitting:
    """One text that is being cut from its beginning on."""

    messages: Sequence[Message]
    text: str
    places: Sequence[Span]
    room: int
    around: int
    """Tokens of the prompt without the text."""
    count: Count
    chars_per_token: float = _USUAL_CHARS_PER_TOKEN
    """Of the last part that was counted."""
    longest: int = 0

    @property
    def budget(self) -> int:
        """Tokens that a part may have."""
        return self.room - self.around

    def find_end(self, start: int) -> int | None:
        """Where the part that begins at `start` ends; None where not one character fits."""
        low, high = 0, len(self.text) - start
        wanted = self.chars_per_token * self.budget * _AIMED_FILL
        best: int | None = None
        for attempt in range(1, MAX_TRIES):
            if attempt % 3 == 0:
                wanted = (low + high) / 2
            num_chars = min(max(round(wanted), low + 1), high)
            end = find_end(self.text, start, start + num_chars)
            found = self.count(put_text(self.messages, self.places, self.text[start:end]))
            num_tokens = None if found is None else max(1, found - self.around)
            if num_tokens is not None and num_tokens <= self.budget:
                best, low = end, num_chars
                self.longest = max(self.longest, self.around + num_tokens)
                self.chars_per_token = (end - start) / num_tokens
                if end == len(self.text) or num_tokens >= _LEAST_FILL * self.budget:
                    break
            else:
                high = num_chars - 1
            if high <= low:
                break
            wanted = (low + high) / 2 if num_tokens is None else (end - start) / num_tokens * self.budget * _AIMED_FILL
        return best
