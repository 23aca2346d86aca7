"""Rows of separated values that are longer than may be kept: they are passed over, and are told from open quotes.

Where a quoted value goes on beyond all limits, either it is a long text, and the rows go on behind it, or nobody closed
the quote, and the rows go on in the next line. What stands behind the next closing quote tells the two apart.
"""

import csv
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from bulkinfer.records import CsvDialect
from bulkinfer.sources.lines import MAX_ROW_LINES, Lines


class LongRows:
    """Passes over rows that took all lines that one may take, and have an open quote."""

    def __init__(self, lines: Lines, dialect: CsvDialect, num_values: int) -> None:
        self._lines = lines
        self._dialect = dialect
        self._num_values = num_values
        self._hopeless_to = 0
        """Quotes that are open in a line before this are not closed as they should be: that was looked for once."""

    def pass_over(self, first: int) -> bool:
        """Read to the end of the row that begins in line `first`, if it has one; else go back behind that line.

        It has one where its quote is closed before a delimiter or the end of a line, and the row then has as many
        values as it should.
        """
        if not self._dialect.quote or self._lines.number < self._hopeless_to:
            return False
        num_before = self._count(chain(self._lines.taken, [self._dialect.quote]))
        further = self._lines.iter_further()
        rest = self._find_rest(further)
        if rest is not None:
            num_behind = self._count(chain([2 * self._dialect.quote + rest], islice(further, MAX_ROW_LINES)))
            if num_before and num_behind and num_before + num_behind - 1 == self._num_values:
                return True
        self._lines.go_back_to(first)
        return False

    def _find_rest(self, further: Iterator[str]) -> str | None:
        """What stands in a line behind the quote that closes the value; None where none does."""
        inside = _match_inside(self._dialect)
        for line in further:
            found = inside.match(line)
            end = found.end() if found else 0
            if end < len(line):
                rest = line[end + 1 :]
                if rest and rest[0] not in {self._dialect.delimiter or ",", "\r", "\n"}:
                    self._hopeless_to = self._lines.number
                    return None
                return rest
        if not self._lines.is_cut:
            self._hopeless_to = self._lines.number + 1
        return None

    def _count(self, lines: Iterator[str]) -> int | None:
        """Of the values of the first row; None where it has a fault."""
        try:
            return len(next(csv.reader(lines, strict=True, **list_parameters(self._dialect)), ()))
        except csv.Error:
            return None


def list_parameters(dialect: CsvDialect) -> dict[str, Any]:
    """A dialect by the csv module's names."""
    has_quotes = bool(dialect.quote)
    return {
        "delimiter": dialect.delimiter or ",",
        "quotechar": dialect.quote if has_quotes else None,
        "quoting": csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE,
        "escapechar": dialect.escape,
        "doublequote": dialect.escape is None,
    }


def _match_inside(dialect: CsvDialect) -> re.Pattern[str]:
    """What a quoted value may go on with: anything up to the quote that closes it."""
    quote = re.escape(dialect.quote)
    if dialect.escape is None:
        return re.compile(f"[^{quote}]*(?:{quote}{quote}[^{quote}]*)*")
    escape = re.escape(dialect.escape)
    return re.compile(f"[^{quote}{escape}]*(?:{escape}.[^{quote}{escape}]*)*", re.DOTALL)
