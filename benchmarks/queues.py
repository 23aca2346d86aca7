"""The queues that are measured: seeded, the same every time, and made to differ in one thing each.

`scale` multiplies the number of documents; lengths and shares stay.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.words import write_rules, write_ticket

SEED = 20261129


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a queue. `system` is the empty text where the queue has one system message, or none."""

    document_id: str
    text: str
    system: str = ""

    @property
    def content(self) -> tuple[str, str]:
        """What makes rows equal."""
        return self.system, self.text


@dataclass(frozen=True, slots=True)
class Queue:
    """Documents, how they are asked, and how long answers may get."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    system: str | None
    """A Jinja template, as the job file has it; the queue's `text` is the user message."""
    max_tokens: int
    max_context_tokens: int
    kv_cache_bytes: int = 1 << 30
    """For who is tuned by hand: it holds the 256 longest documents at once, what they share counted once. A larger one
    would only take longer to be filled with zeros."""

    @property
    def num_distinct(self) -> int:
        """Documents that differ."""
        return len({entry.content for entry in self.entries})

    @property
    def share_equal(self) -> float:
        """The share of rows that hold what an earlier row holds."""
        return 1 - self.num_distinct / len(self.entries)

    def conversations(self) -> list[list[dict[str, str]]]:
        """What each peer is given: the messages that bulkinfer renders from its template."""
        return [self._converse(entry) for entry in self.entries]

    def _converse(self, entry: Entry) -> list[dict[str, str]]:
        user = {"role": "user", "content": entry.text}
        system = entry.system or self.system
        return [user] if system is None else [{"role": "system", "content": system}, user]


def create_queue(name: str, scale: float = 1.0) -> Queue:
    """A queue by its name. Raises KeyError for a name that is none."""
    return _BUILDERS[name](random.Random(f"{SEED}-{name}"), scale)


def queue_names() -> tuple[str, ...]:
    """All queues, in the order in which they are measured and shown."""
    return tuple(_BUILDERS)


def write_queue(queue: Queue, path: Path) -> None:
    """Write the documents as JSONL, one row for each, for bulkinfer to read."""
    rows = ({"id": entry.document_id, "system": entry.system, "text": entry.text} for entry in queue.entries)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _build_reference(rng: random.Random, scale: float) -> Queue:
    texts = [write_ticket(rng, 240) for _ in range(_count(512, scale))]
    return Queue(
        name="reference",
        title="512 tickets of 240 characters, one system prompt, 10 % equal",
        entries=_number(_repeat(rng, texts, 0.10)),
        system=write_rules(rng, "short summaries of the tickets", 330),
        max_tokens=32,
        max_context_tokens=4096,
    )


def _build_classification(rng: random.Random, scale: float) -> Queue:
    return Queue(
        name="classification",
        title="classification: a shared prompt of several hundred tokens, 3 output tokens",
        entries=_number([write_ticket(rng, 160) for _ in range(_count(320, scale))]),
        system=write_rules(rng, "the sorting of tickets. Answer with delivery, payment, defect or other", 1800),
        max_tokens=3,
        max_context_tokens=2048,
    )


def _build_summaries(rng: random.Random, scale: float) -> Queue:
    lengths = [min(6000, max(60, round(rng.lognormvariate(6.0, 0.9)))) for _ in range(_count(112, scale))]
    return Queue(
        name="summaries",
        title="summaries: lengths spread log-normally, 60 to 6,000 characters",
        entries=_number([write_ticket(rng, num_chars) for num_chars in lengths]),
        system="You summarise customer support tickets in one short sentence.",
        max_tokens=48,
        max_context_tokens=4096,
        kv_cache_bytes=(1 if scale <= 1 else 2) << 30,
    )


def _build_groups(rng: random.Random, scale: float) -> Queue:
    num_groups = max(2, round(24 * min(1.0, scale * 2)))
    systems = [write_rules(rng, f"department {number} and its tickets", 1100) for number in range(num_groups)]
    texts = [(systems[number % num_groups], write_ticket(rng, 120)) for number in range(_count(192, scale))]
    rng.shuffle(texts)
    entries = tuple(Entry(f"{index:06d}", text, system) for index, (system, text) in enumerate(texts))
    return Queue(
        name="groups",
        title="24 groups with a long prompt of their own each, shuffled",
        entries=entries,
        system="{{ system }}",
        max_tokens=16,
        max_context_tokens=2048,
    )


def _build_equal(rng: random.Random, scale: float) -> Queue:
    texts = [write_ticket(rng, 200) for _ in range(_count(288, scale))]
    return Queue(
        name="equal",
        title="20 % equal documents",
        entries=_number(_repeat(rng, texts, 0.20)),
        system="You summarise customer support tickets in one short sentence.",
        max_tokens=24,
        max_context_tokens=2048,
    )


def _build_tail(rng: random.Random, scale: float) -> Queue:
    """The model decides how long it answers; it was seen to take 15 to 75 tokens for the number, up to 256 for a story.

    Prompts of both kinds are of one length: that of the prompt tells nothing of the answer's.
    """
    num_rows = _count(240, scale)
    num_long = max(1, num_rows // 40)
    short = [f"What is the number in this text?\n{write_ticket(rng, rng.randrange(60, 140))}" for _ in range(num_rows)]
    long = [f"Write a long story about this, with many details.\n{write_ticket(rng, 80)}" for _ in range(num_long)]
    return Queue(
        name="tail",
        title="a long tail: most answers short, a few of up to 256 tokens, last in the file",
        entries=_number(short[: num_rows - num_long] + long),
        system=None,
        max_tokens=256,
        max_context_tokens=2048,
        kv_cache_bytes=2 << 30,
    )


def _build_tiny(rng: random.Random, scale: float) -> Queue:
    return Queue(
        name="tiny",
        title="all tiny: a dozen words in, 4 tokens out",
        entries=_number([f"{rng.randrange(1000)} plus {rng.randrange(10**6)} is?" for _ in range(_count(640, scale))]),
        system=None,
        max_tokens=4,
        max_context_tokens=512,
    )


_BUILDERS: Mapping[str, Callable[[random.Random, float], Queue]] = {
    "reference": _build_reference,
    "classification": _build_classification,
    "summaries": _build_summaries,
    "groups": _build_groups,
    "equal": _build_equal,
    "tail": _build_tail,
    "tiny": _build_tiny,
}


def _count(num_documents: int, scale: float) -> int:
    return max(10, round(num_documents * scale))


def _number(texts: list[str]) -> tuple[Entry, ...]:
    return tuple(Entry(f"{index:06d}", text) for index, text in enumerate(texts))


def _repeat(rng: random.Random, texts: list[str], share: float) -> list[str]:
    """Replace a share of the texts by copies of others, anywhere in the queue."""
    copies = set(rng.sample(range(len(texts)), round(len(texts) * share)))
    originals = [text for index, text in enumerate(texts) if index not in copies]
    return [rng.choice(originals) if index in copies else text for index, text in enumerate(texts)]
