"""A uniform sample of the documents that are still to do, taken while the input streams by, in bounded memory.

The documents with the smallest keys, as in a bottom-k sketch; a key is a part of the document's hash, which is as good
as a random number. So no seed is needed: the sample depends on the documents alone, not on their order, and a document
that stands in a thousand rows counts once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from bulkinfer.records import Document

_KEY_BEGIN = 8
"""Not the first half of the hash: the simulated engine decides by it how long an answer is."""
_SLACK = 4
"""So many times its size a sample may grow before it is cut: looking up what is done costs less in large blocks."""


@dataclass(slots=True)
class Sample:
    """Offer each document whose key is below `bar`; ask for `documents` after `settle`."""

    size: int
    max_bytes: int
    """Of their canonical JSON, as it is offered."""
    find_done: Callable[[Sequence[bytes]], frozenset[bytes]]
    bar: bytes = b"\xff" * 17
    """Keys are below it, or the sample need not see them."""
    _kept: dict[bytes, tuple[Document, int]] = field(default_factory=dict)
    _num_checked: int = 0
    _num_bytes: int = 0

    def __len__(self) -> int:
        """Documents held at this moment."""
        return len(self._kept)

    @property
    def documents(self) -> dict[bytes, Document]:
        """By hash."""
        return {document_hash: document for document_hash, (document, _) in self._kept.items()}

    def offer(self, document_hash: bytes, document: Document, num_bytes: int) -> None:
        """Take a document in, if it is not there yet."""
        if document_hash in self._kept:
            return
        self._kept[document_hash] = document, num_bytes
        self._num_bytes += num_bytes
        if len(self._kept) >= _SLACK * self.size or self._num_bytes >= 2 * self.max_bytes:
            self.settle()

    def settle(self) -> None:
        """Drop what is done, and what is too many."""
        hashes = list(self._kept)
        for document_hash in self.find_done(hashes[self._num_checked :]):
            del self._kept[document_hash]
        in_order = sorted(self._kept, key=key_of)
        num_kept = self._count_affordable(in_order)
        if num_kept < len(in_order):
            self.bar = key_of(in_order[num_kept])
        self._kept = {document_hash: self._kept[document_hash] for document_hash in in_order[:num_kept]}
        self._num_checked = len(self._kept)
        self._num_bytes = sum(num_bytes for _, num_bytes in self._kept.values())

    def _count_affordable(self, in_order: Sequence[bytes]) -> int:
        total = accumulate(self._kept[document_hash][1] for document_hash in in_order[: self.size])
        return max(1, sum(1 for num_bytes in total if num_bytes <= self.max_bytes)) if in_order else 0


def key_of(document_hash: bytes) -> bytes:
    """What documents are drawn by: uniform, and the same for equal documents."""
    return document_hash[_KEY_BEGIN:]
