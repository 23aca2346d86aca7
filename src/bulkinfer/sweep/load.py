"""What is sent: short chat requests and long summaries, made of the job's own input and prompt.

Documents are told apart by the length of their prompts. Where the input has too few of a kind, they are made of those
that it has: a long one by joining several, a short one by cutting.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, islice
from statistics import median

from bulkinfer.engines.from_job import LOW_PRIORITY
from bulkinfer.errors import InputError
from bulkinfer.job import Job
from bulkinfer.prompt import PromptTemplate
from bulkinfer.records import Document, Message, Origin, Request, Workload
from bulkinfer.sources import Source
from bulkinfer.sweep.options import Kind

MAX_DOCUMENTS = 5_000
"""Rows of the input that are read."""
MIN_OF_KIND = 8
"""With fewer of its own documents a kind is made of the others."""
LONG_RATIO = 2.0
"""Long prompts are at least so many times as long as short ones, by the median."""
MADE_RATIO = 4.0
"""A long prompt that is made of several documents is so many times as long as a short one."""
SHORT_MAX_TOKENS = 32
"""Of an answer to a short request, unless the job or the command says less."""
_CHARS_PER_TOKEN = 3
"""Of English, on the careful side."""

Conversation = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of the load, before it is sent."""

    number: int
    kind: Kind
    user: int
    request: Request
    cancel_draw: float | None
    """When it is cancelled, as a share of the time that requests take; None: never."""

    @property
    def num_tokens(self) -> int:
        """What it may come to hold of the KV cache, on the careful side."""
        max_tokens = self.request.sampling["max_tokens"]
        assert isinstance(max_tokens, int)
        return -(-self.request.num_chars // _CHARS_PER_TOKEN) + max_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """The prompts of each kind, and how long answers may be."""

    prompts: Mapping[Kind, tuple[Conversation, ...]]
    max_tokens: Mapping[Kind, int]
    made: Mapping[Kind, int]
    """Of the prompts, those that were made of several documents or cut."""
    num_documents: int
    """Rows that were read for it."""
    low: frozenset[Kind] = frozenset()
    lengths: Mapping[Kind, tuple[int, ...]] = field(default_factory=dict)
    """Tokens that the answer to each prompt has at most; where there are none, `max_tokens` says."""
    adapter: str | None = None
    """The LoRA adapter that answers all."""

    def iter_requests(
        self, mix: Mapping[Kind, float], cancel_share: float, num_users: int, seed: int, point: int
    ) -> Iterator[LoadRequest]:
        """Requests without end; the same for the same `seed`, so that all points get the same load.

        A prompt begins with the numbers of its point and its round, so that the prefix cache does not answer for it.
        Answers of the simulated engine are as long as a request's hash says: it is the same at all points.
        """
        draws = random.Random(seed)  # noqa: S311 - a load, not a secret
        kinds, shares = list(mix), list(mix.values())
        prompts = {kind: self._iter_prompts(kind, point) for kind in kinds if mix[kind] > 0}
        number = 0
        while True:
            kind = draws.choices(kinds, shares)[0]
            user = draws.randrange(num_users)
            is_cancelled, moment = draws.random() < cancel_share, draws.random()
            conversation, max_tokens = next(prompts[kind])
            yield LoadRequest(
                number,
                kind,
                user,
                self._make_request(kind, conversation, max_tokens, f"{seed}/{number}"),
                moment if is_cancelled else None,
            )
            number += 1

    def workload(self, num_at_once: int) -> Workload:
        """What the engine is told when it chooses its settings: so many of these prompts at once, and then more."""
        sizes = sorted(
            (sum(len(message.content.encode(errors="replace")) for message in one) for one in self._all()), reverse=True
        )
        chars = [sum(len(message.content) for message in one) for one in self._all()]
        return Workload(
            num_documents=num_at_once,
            mean_chars=sum(chars) / len(chars),
            p95_bytes=sizes[len(sizes) // 20],
            max_chars=max(chars),
            is_read_to_end=True,
            longest_bytes=tuple(islice(cycle(sizes[: max(1, len(sizes) // 10)]), min(num_at_once, 256))),
        )

    def describe(self) -> dict[str, object]:
        """For the report: counts and lengths, no text."""
        return {
            kind.value: {
                "prompts": len(prompts),
                "made": self.made[kind],
                "median_chars": round(median(_count_chars(one) for one in prompts)),
                "max_tokens": self.max_tokens[kind],
                "priority": "low" if kind in self.low else "normal",
            }
            for kind, prompts in self.prompts.items()
        }

    def _all(self) -> Iterator[Conversation]:
        return chain.from_iterable(self.prompts.values())

    def _iter_prompts(self, kind: Kind, point: int) -> Iterator[tuple[Conversation, int]]:
        prompts = self.prompts[kind]
        lengths = self.lengths.get(kind) or (self.max_tokens[kind],) * len(prompts)
        for number in range(1 << 62):
            for conversation, length in zip(prompts, lengths, strict=True):
                last = conversation[-1]
                yield (*conversation[:-1], replace(last, content=f"{point}.{number} {last.content}")), length

    def _make_request(self, kind: Kind, conversation: Conversation, max_tokens: int, name: str) -> Request:
        return Request(
            document_hash=hashlib.sha256(name.encode()).digest()[:16],
            origin=Origin("sweep", 1, name),
            messages=conversation,
            num_chars=_count_chars(conversation),
            sampling={"max_tokens": max_tokens},
            adapter=self.adapter,
            priority=LOW_PRIORITY if kind in self.low else 0,
        )


def read_load(
    job: Job,
    template: PromptTemplate,
    sources: Sequence[Source],
    max_tokens: Mapping[Kind, int],
    low: frozenset[Kind] = frozenset(),
) -> Load:
    """Read the first documents of the input and sort them into kinds. Raises InputError if none gives a prompt."""
    rows = islice(chain.from_iterable(source.iter_rows() for source in sources), MAX_DOCUMENTS)
    rendered = [template.render(row) for row in rows if isinstance(row, Document)]
    conversations = [one for one in rendered if isinstance(one, tuple)]
    if not conversations:
        raise InputError(
            f"{job.path}: none of the input's first {MAX_DOCUMENTS:,} rows gives a prompt; `bulkinfer plan` says why"
        )
    limit = job.spec.limits.max_context_tokens
    most = job.spec.max_tokens
    of_kind = {Kind.SHORT: min(SHORT_MAX_TOKENS, most), Kind.LONG: most} | dict(max_tokens)
    max_chars = (limit - of_kind[Kind.LONG]) * _CHARS_PER_TOKEN if isinstance(limit, int) else None
    prompts, made = sort_kinds(conversations, max_chars)
    return Load(prompts, of_kind, made, len(rendered), low, adapter=job.spec.model.adapter)


def sort_kinds(
    conversations: Sequence[Conversation], max_chars: int | None
) -> tuple[dict[Kind, tuple[Conversation, ...]], dict[Kind, int]]:
    """The shorter half is short, the longest quarter is long; and how many of each had to be made."""
    in_order = sorted(dict.fromkeys(conversations), key=_count_chars)
    short = in_order[: -(-len(in_order) // 2)]
    long = in_order[len(in_order) * 3 // 4 :]
    made = dict.fromkeys(Kind, 0)
    base = median(map(_count_chars, short))
    if len(in_order) < 4 * MIN_OF_KIND or median(map(_count_chars, long)) < LONG_RATIO * base:
        long = [_join(in_order, start, MADE_RATIO * base, max_chars) for start in range(max(MIN_OF_KIND, len(long)))]
        made[Kind.LONG] = len(long)
    return {Kind.SHORT: tuple(short), Kind.LONG: tuple(long)}, made


def _join(conversations: Sequence[Conversation], start: int, num_chars: float, max_chars: int | None) -> Conversation:
    """Documents one after the other, from the `start`th, in one user message of at least so many characters."""
    most = num_chars if max_chars is None else min(num_chars, max_chars)
    first = conversations[start % len(conversations)]
    texts, total = [], 0
    for index in range(start, start + 1000):
        text = conversations[index % len(conversations)][-1].content
        texts.append(text)
        total += len(text) + 2
        if total >= most:
            break
    content = "\n\n".join(texts)
    if max_chars is not None:
        content = content[: max(1, max_chars)]
    return (*first[:-1], replace(first[-1], content=content))


def _count_chars(conversation: Conversation) -> int:
    return sum(len(message.content) for message in conversation)
