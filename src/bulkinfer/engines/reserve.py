"""What of an engine batch work may have when a share is kept free for others: `limits.reserve`. Pure.

A run starts an engine of that size only. Where one engine serves both kinds of work, start it whole (`EngineSpec` with
`reserve=0`) and ask `Reserve.admits` before each batch request; what is urgent may have all.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reserve:
    """A share of the sequences and of the KV cache, 0 to less than 1."""

    share: float

    def max_sequences(self, num_sequences: int) -> int:
        """Of so many sequences, those that batch work may have; at least one, or it would never end."""
        return self._allow(num_sequences)

    def max_kv_tokens(self, num_tokens: int) -> int:
        """Of a KV cache of so many tokens, those that batch work may have."""
        return self._allow(num_tokens)

    def admits(
        self,
        num_tokens: int,
        *,
        num_sequences: int,
        num_kv_tokens: int,
        num_batch_sequences: int,
        num_batch_kv_tokens: int,
    ) -> bool:
        """Whether an engine of so many sequences and KV tokens may take one more batch request.

        `num_tokens` are those of its prompt and its `max_tokens`: what it may come to hold. `num_batch_sequences` and
        `num_batch_kv_tokens` are the same of the batch requests that the engine has. One alone is always admitted: a
        document that needs more than its share would never be answered.
        """
        if num_batch_sequences == 0:
            return True
        has_sequence = num_batch_sequences < self.max_sequences(num_sequences)
        return has_sequence and num_batch_kv_tokens + num_tokens <= self.max_kv_tokens(num_kv_tokens)

    def _allow(self, number: int) -> int:
        # Rounded first: 1 - 0.9 is a little less than a tenth.
        return max(1, math.floor(round(number * (1 - self.share), 6)))

    def __str__(self) -> str:
        return f"{100 * self.share:g}%"
