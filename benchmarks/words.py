"""Seeded text for the queues: English that reads like support tickets. Same seed, same text."""

import random

_SUBJECTS = (
    "The desk lamp", "My order", "The filter light", "The tent pole", "The label printer", "Our subscription",
    "The water bottle", "The night train ticket", "The invoice", "The smart plug", "The app", "The backpack",
)  # fmt: skip
_VERBS = (
    "stopped working", "arrived damaged", "makes a loud noise", "was charged twice", "has not been delivered",
    "shows the wrong date", "does not pair with my phone", "leaks at the lid", "smells of burnt plastic",
    "was sent to an old address", "keeps restarting", "is missing a part",
)  # fmt: skip
_CIRCUMSTANCES = (
    "since the update on Tuesday", "after only three days", "although I followed the manual", "for the second time",
    "when the room is warm", "while two of my colleagues had no trouble", "just before our holiday",
    "and nobody answers the telephone", "even with a new battery", "as soon as it is plugged in",
)  # fmt: skip
_WISHES = (
    "Please send a replacement.", "I would like my money back.", "Can you tell me what to do next?",
    "How long will a repair take?", "Please confirm the new address.", "I need an answer before Friday.",
    "Is this covered by the warranty?", "Please cancel the second order.",
)  # fmt: skip
_RULES = (
    "Read the whole text before you decide.", "Do not repeat the text.", "Ignore greetings and signatures.",
    "Treat prices in any currency alike.", "A reply to an earlier answer counts as a new request.",
    "Dates may be written in any order.", "Names of products are not requests.",
    "If two topics are named, take the first.",
    "Anger alone is not a complaint.", "A question about a delivery that is late is about delivery.",
    "Requests in another language are handled like all others.", "Numbers of orders have eight digits.",
    "A photograph that is mentioned cannot be seen.", "Take what is written, not what may be meant.",
)  # fmt: skip


def write_sentence(rng: random.Random) -> str:
    """One sentence of a ticket; a number in it makes equal sentences rare."""
    subject, verb, circumstance = rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_CIRCUMSTANCES)
    return f"{subject} (number {rng.randrange(10**6)}) {verb} {circumstance}."


def write_ticket(rng: random.Random, num_chars: int) -> str:
    """A ticket of about `num_chars` characters, cut at a word."""
    text = write_sentence(rng)
    while len(text) < num_chars:
        text += " " + (rng.choice(_WISHES) if rng.random() < 0.3 else write_sentence(rng))
    return text if len(text) <= num_chars + 1 else text[: num_chars + 1].rpartition(" ")[0]


def write_rules(rng: random.Random, topic: str, num_chars: int) -> str:
    """Instructions of about `num_chars` characters for a system message."""
    text = f"You work on {topic} of a mail-order house."
    while len(text) < num_chars:
        text += f" Rule {rng.randrange(100, 1000)}: {rng.choice(_RULES)}"
    return text
