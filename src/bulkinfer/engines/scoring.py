"""How probable each choice of a classify job is. Pure: an engine brings the numbers.

The probability of a choice is that of all its tokens, each given the prompt and those before it: the joint probability
that the model, left to itself, would write just this. Over all choices they are normalised. So a choice of several
tokens is not judged by its first alone, and one that the model would hardly begin cannot win by how it goes on.

Calibrated, each is divided by what it is without a document (Zhao et al., Calibrate Before Use, 2021), and all are
normalised again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bulkinfer.records import JsonValue, Message

LEAST_PRIOR = 1e-9
"""What a choice counts for without a document, at least: a division by nothing would make it win always."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is asked for besides the label."""

    choices: tuple[str, ...]
    is_told: bool
    """Whether the probabilities are kept."""
    prior: tuple[Message, ...] | None = None
    """The prompt of an empty document, where they are to be calibrated."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A label, and what is kept of how it came about."""

    label: str
    details: dict[str, JsonValue] | None


def normalise(logprobs: Mapping[str, float]) -> dict[str, float]:
    """Probabilities, all together 1, from logarithms of joint probabilities."""
    most = max(logprobs.values())
    if most == -math.inf:
        return {choice: 1 / len(logprobs) for choice in logprobs}
    weights = {choice: math.exp(logprob - most) for choice, logprob in logprobs.items()}
    total = sum(weights.values())
    return {choice: weight / total for choice, weight in weights.items()}


def calibrate(probabilities: Mapping[str, float], prior: Mapping[str, float]) -> dict[str, float]:
    """Each divided by its prior, all together 1 again."""
    weights = {choice: one / max(prior[choice], LEAST_PRIOR) for choice, one in probabilities.items()}
    total = sum(weights.values())
    return {choice: weight / total for choice, weight in weights.items()}


def decide_label(scoring: Scoring, probabilities: Mapping[str, float], prior: Mapping[str, float] | None) -> Verdict:
    """The most probable choice, the first of those that are equally so."""
    decisive = probabilities if prior is None else calibrate(probabilities, prior)
    label = max(scoring.choices, key=lambda choice: decisive[choice])
    if not scoring.is_told:
        return Verdict(label, None)
    details: dict[str, JsonValue] = {"probabilities": round_all(decisive)}
    if prior is not None:
        details["uncalibrated"] = round_all(probabilities)
    return Verdict(label, details)


def round_all(probabilities: Mapping[str, float]) -> dict[str, JsonValue]:
    """To six digits: the engine's arithmetic has no more."""
    return {choice: float(f"{one:.6g}") for choice, one in probabilities.items()}


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the tree of all choices' tokens: what stands before it, and the tokens that may follow."""

    prefix: tuple[int, ...]
    followers: tuple[int, ...]


def list_nodes(choices: Sequence[Sequence[int]], most_followers: int) -> list[Node]:
    """The tree of the choices' tokens, its root first; a place with more followers than that is there several times."""
    followers: dict[tuple[int, ...], dict[int, None]] = {}
    for tokens in choices:
        for place, token in enumerate(tokens):
            followers.setdefault(tuple(tokens[:place]), {})[token] = None
    return [
        Node(prefix, tuple(tokens)[start : start + most_followers])
        for prefix, tokens in sorted(followers.items(), key=lambda found: (len(found[0]), found[0]))
        for start in range(0, len(tokens), most_followers)
    ]


def join_logprobs(tokens: Sequence[int], logprobs: Mapping[tuple[int, ...], float]) -> float:
    """Of a choice, from those of its tokens: by the tokens up to and including each."""
    return sum(logprobs[tuple(tokens[: place + 1])] for place in range(len(tokens)))
