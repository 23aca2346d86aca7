"""How much of a document fits into a prompt: found by counting tokens, in few tries. Knows no engine.

Whoever asks brings a function that counts the tokens of messages as the engine does, chat template included, so that
what is found fits to the token. More characters are taken for at least as many tokens: where that is not so (a word cut
in the middle may have more tokens than the whole), what is found still fits, and is a few tokens shorter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bulkinfer.prompt.cutting import cap_spans
from bulkinfer.records import Message, Overlong, Span

Count = Callable[[tuple[Message, ...]], int | None]
"""Tokens of a prompt; None for one that the engine refuses."""

MAX_TRIES = 24
"""Counts for one cut. Most need four or five; by halving alone this finds one character in 16 million."""
SLACK_TOKENS = 2
"""A cut that leaves no more of the room than this is long enough."""

_USUAL_CHARS_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that is cut so that it fits."""

    messages: tuple[Message, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """Cutting does not help."""

    num_tokens: int | None
    """Of what is not cut; None where the engine refuses it."""


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
    low, high = 0, max((span.end - span.start for span in spans), default=0)
    best = cap_spans(messages, spans, low, policy)
    num_low, num_high = count(best), num_tokens
    if num_low is None or num_low > room:
        return Unfit(num_low)
    for attempt in range(1, MAX_TRIES):
        if high - low <= 1 or room - num_low <= SLACK_TOKENS:
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
    return Fitted(best, num_low)


def _guess(num_chars: int, room: int, num_tokens: int | None) -> float:
    """How many of the next characters take `room` tokens, if they all take `num_tokens`; a token is left free."""
    if num_tokens is None or num_tokens <= 0:
        return _USUAL_CHARS_PER_TOKEN * room
    return num_chars * (room - 1) / num_tokens
