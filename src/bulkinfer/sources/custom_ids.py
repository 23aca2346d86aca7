"""The names of a batch's requests: of two equal ones, in whichever files, the second has no answer under it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import orjson

from bulkinfer.records import Document, SourceFile
from bulkinfer.sources.jsonl import JsonlSource

_LINES = 1 << 48
"""A place is one number: that of the file times this, and the line."""


@dataclass(slots=True)
class _Names:
    files: Sequence[SourceFile]
    first: dict[bytes, int] = field(default_factory=dict)
    """By hash of the name, the place that has it first."""
    num_read: int = 0
    """Files whose names are all there, from the first on."""


@dataclass(frozen=True, slots=True)
class CustomIds:
    """Those of one file, among all of its input. Memory grows with the number of requests, by a hash for each.

    Files are read one after the other; of those before that were not read in this process, the names are read then.
    """

    _names: _Names
    _number: int
    """Which of the files it is, from 0."""

    @classmethod
    def of(cls, file: SourceFile) -> "CustomIds":
        """Of a file that shares them with others, or stands alone."""
        shared = file.custom_ids
        return shared if isinstance(shared, cls) else cls(_Names([file]), 0)

    def begin(self) -> None:
        """Before the file is read. Raises InputError as sources do."""
        names = self._names
        while names.num_read < self._number:
            for row in JsonlSource(names.files[names.num_read], None, None).iter_rows():
                custom_id = row.fields.get("custom_id") if isinstance(row, Document) else None
                if isinstance(custom_id, str) and custom_id:
                    names.first.setdefault(_hash(custom_id), names.num_read * _LINES + row.origin.row)
            names.num_read += 1

    def find_other(self, custom_id: str, line: int) -> str | None:
        """Where the name stood before; None where this line is the first, which it is from now on."""
        place = self._number * _LINES + line
        first = self._names.first.setdefault(_hash(custom_id), place)
        if first == place:
            return None
        number, other_line = divmod(first, _LINES)
        other = "" if number == self._number else f"{self._names.files[number].name}, "
        return f"{other}line {other_line}"

    def end(self) -> None:
        """After the file was read to its end."""
        if self._names.num_read == self._number:
            self._names.num_read += 1


def share_custom_ids(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The files of one input, which from now on know of each other's names.

    Each is known by how those before it stand, too: where these are others, its own names may be the second ones.
    """
    names = _Names(files)
    digest = hashlib.sha256()
    shared: list[SourceFile] = []
    for number, file in enumerate(files):
        said = orjson.dumps({"files_before": digest.hexdigest()[:32]}).decode() if number else ""
        shared.append(replace(file, custom_ids=CustomIds(names, number), choice=file.choice + said))
        identity = (file.name, file.size_bytes, file.mtime_ns, file.ctime_ns, file.inode)
        digest.update(orjson.dumps(identity) + b"\n")
    return shared


def _hash(custom_id: str) -> bytes:
    return hashlib.sha256(custom_id.encode("utf-8", "surrogatepass")).digest()[:16]
