"""What is known of the work ahead: by it an engine chooses its settings."""

from dataclasses import dataclass, field

from bulkinfer.records import NUM_LONGEST, Workload
from bulkinfer.shards import Shard, find_p95, sort_sizes


@dataclass(slots=True)
class Outlook:
    """Lengths of the prompts found so far, in a few numbers whatever their count."""

    tokens_per_s: float | None = None
    """Of an earlier run of this model here."""
    num_asked: int = 0
    chars_asked: int = 0
    p95_bytes: int = 0
    """The highest 95th percentile of any shard stands for all."""
    max_chars: int = 0
    longest_bytes: list[int] = field(default_factory=list)
    """The longest first."""
    has_last_shard: bool = False
    """All documents to do are known, although the planner may not have said so yet."""

    def note_shard(self, shard: Shard) -> None:
        """The loop took a shard over."""
        lengths = [request.num_chars for request in shard.requests]
        sizes = sort_sizes(shard.requests)
        self.num_asked += len(lengths)
        self.chars_asked += sum(lengths)
        self.p95_bytes = max(self.p95_bytes, find_p95(sizes))
        self.max_chars = max(self.max_chars, *lengths, 0)
        self.longest_bytes = sorted([*self.longest_bytes, *sizes[-NUM_LONGEST:]], reverse=True)[:NUM_LONGEST]
        self.has_last_shard = shard.is_last

    def estimate(self, num_finished: int, share_read: float) -> Workload:
        """The work ahead when so many of the documents are finished.

        `share_read`: of the input, 0 to 1; documents that are not read yet are taken to be like those that are.
        """
        share = 1.0 if self.has_last_shard else share_read
        return Workload(
            num_documents=max(0, round(self.num_asked / share) - num_finished) if share > 0 else None,
            mean_chars=self.chars_asked / self.num_asked if self.num_asked else 0.0,
            p95_bytes=self.p95_bytes,
            max_chars=self.max_chars,
            is_read_to_end=self.has_last_shard,
            tokens_per_s=self.tokens_per_s,
            longest_bytes=tuple(self.longest_bytes),
        )
