"""What is known of the work ahead: by it an engine chooses its settings."""

from dataclasses import dataclass

from bulkinfer.records import Workload
from bulkinfer.shards import Shard, find_p95


@dataclass(slots=True)
class Outlook:
    """Lengths of the prompts found so far, in a few numbers whatever their count."""

    tokens_per_s: float | None = None
    """Of an earlier run of this model here."""
    num_asked: int = 0
    chars_asked: int = 0
    p95_chars: int = 0
    """The highest 95th percentile of any shard stands for all."""
    max_chars: int = 0
    has_last_shard: bool = False
    """All documents to do are known, although the planner may not have said so yet."""

    def note_shard(self, shard: Shard) -> None:
        """The loop took a shard over."""
        lengths = sorted(request.num_chars for request in shard.requests)
        self.num_asked += len(lengths)
        self.chars_asked += sum(lengths)
        self.p95_chars = max(self.p95_chars, find_p95(lengths))
        self.max_chars = max(self.max_chars, *lengths[-1:], 0)
        self.has_last_shard = shard.is_last

    def estimate(self, num_finished: int, share_read: float) -> Workload:
        """The work ahead when so many of the documents are finished.

        `share_read`: of the input, 0 to 1; documents that are not read yet are taken to be like those that are.
        """
        share = 1.0 if self.has_last_shard else share_read
        return Workload(
            num_documents=max(0, round(self.num_asked / share) - num_finished) if share > 0 else None,
            mean_chars=self.chars_asked / self.num_asked if self.num_asked else 0.0,
            p95_chars=self.p95_chars,
            max_chars=self.max_chars,
            is_read_to_end=self.has_last_shard,
            tokens_per_s=self.tokens_per_s,
        )
