"""The one place that writes for people: lines, tables, errors."""

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_SHOWN_NUMBERS = 4
"""Of a vector in a table on a terminal."""
_MAX_RULED_ROWS = 10_000


def print_error(message: str) -> None:
    """One error, to stderr."""
    text = Text.assemble(("error: ", "bold red"), "\n".join(visible(line) for line in message.splitlines()))
    open_console(sys.stderr).print(text, soft_wrap=True)


def print_lines(lines: Iterable[str], *, stream: TextIO | None = None) -> None:
    """Plain lines for people; on a terminal too long ones break between words, and elsewhere not at all."""
    console = open_console(stream or sys.stderr)
    for line in lines:
        console.print(Text(visible(line)), soft_wrap=not console.is_terminal)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, stream: TextIO | None = None) -> None:
    """Rows as a table: ruled on a terminal, cut to its width; whole and tab-separated without one.

    A ruled table is held in memory, so a terminal gets the first 10,000 rows, and is told so.
    """
    console = open_console(stream or sys.stdout)
    if not console.is_terminal:
        for cells in (columns, *rows):
            console.file.write("\t".join(visible(str(cell)) for cell in cells) + "\n")
        return
    table = Table()
    for column in columns:
        table.add_column(Text(visible(column)))
    left = iter(rows)
    for cells in islice(left, _MAX_RULED_ROWS):
        table.add_row(*(Text(visible(_show(cell)), overflow="ellipsis") for cell in cells))
    console.print(table)
    if next(left, None) is not None:
        console.print(Text(f"the first {_MAX_RULED_ROWS:,} rows; a pipe or a file gets all"))


def _show(cell: object) -> str:
    """A value for a terminal: of a vector its beginning, as a screen full of numbers tells nobody anything."""
    if isinstance(cell, list) and len(cell) > _SHOWN_NUMBERS and all(isinstance(one, float) for one in cell):
        shown = ", ".join(f"{one:.4g}" for one in cell[:_SHOWN_NUMBERS])
        return f"[{shown}, ... {len(cell):,} numbers]"
    return str(cell)


def open_console(stream: TextIO) -> Console:
    """A console on a stream; a terminal that says it has no width (`COLUMNS=0`) gets the usual one."""
    console = Console(file=stream, highlight=False)
    if console.width < 1:
        console.width = 80
    return console


def is_for_a_view(console: Console) -> bool:
    """Whether something can be drawn there again and again; anything else gets plain lines."""
    return console.is_terminal and not console.is_dumb_terminal


def visible(text: str) -> str:
    """Control characters as their escapes, so that no input can drive the terminal. A newline becomes a space."""
    return "".join(
        " " if character in "\n\t" else character if character.isprintable() else ascii(character)[1:-1]
        for character in text
    )
