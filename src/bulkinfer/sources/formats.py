"""What an input file holds: told by the ending of its name, or by the job."""

from dataclasses import asdict, dataclass, replace

import orjson

from bulkinfer.records import PLAIN_CSV, CsvDialect, FileFormat, FormatKind, OpenAiFile, Packing

_TABS = CsvDialect(delimiter="\t")
_PACKINGS = {".gz": Packing.GZIP, ".zst": Packing.ZSTD}
_STREAMS = {
    ".jsonl": FileFormat(FormatKind.JSONL),
    ".ndjson": FileFormat(FormatKind.JSONL),
    ".csv": FileFormat(FormatKind.CSV),
    ".tsv": FileFormat(FormatKind.CSV, csv=_TABS),
    ".tab": FileFormat(FormatKind.CSV, csv=_TABS),
    ".txt": FileFormat(FormatKind.TEXT),
    ".md": FileFormat(FormatKind.TEXT),
}
_ENDINGS = {
    ".parquet": FileFormat(FormatKind.PARQUET),
    ".pq": FileFormat(FormatKind.PARQUET),
    ".arrow": FileFormat(FormatKind.ARROW),
    ".feather": FileFormat(FormatKind.ARROW),
    ".ipc": FileFormat(FormatKind.ARROW),
    ".arrows": FileFormat(FormatKind.ARROW),
    **_STREAMS,
    **{
        ending + packed: replace(file_format, packing=packing)
        for ending, file_format in _STREAMS.items()
        for packed, packing in _PACKINGS.items()
    },
}
KNOWN_ENDINGS = (
    ".parquet, .pq, .jsonl, .ndjson, .csv, .tsv, .tab, .txt, .md (these also with .gz or .zst), "
    ".arrow, .arrows, .feather, .ipc"
)


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """What the job says of its files' formats; by default nothing."""

    kind: FormatKind | None = None
    """Of all files, whatever their endings."""
    csv: CsvDialect = PLAIN_CSV
    """What is given of it is so in all files of that kind."""
    csv_encoding: str | None = None
    text_encoding: str | None = None
    openai: OpenAiFile | None = None

    def find_format(self, name: str) -> FileFormat | None:
        """The format of a file of this name, in upper or lower case; None for an ending that is not known."""
        lower = name.lower()
        by_ending = next((found for ending, found in _ENDINGS.items() if lower.endswith(ending)), None)
        if self.kind is not None and (by_ending is None or by_ending.kind is not self.kind):
            packing = next((found for ending, found in _PACKINGS.items() if lower.endswith(ending)), Packing.NONE)
            by_ending = FileFormat(self.kind, packing)
        return by_ending if by_ending is None else self._refine(by_ending)

    def is_in_folder(self, name: str, *, with_texts: bool) -> bool:
        """Whether a folder stands for a file of this name, too. Texts are often the notes beside a table."""
        lower = name.lower()
        found = next((found for ending, found in _ENDINGS.items() if lower.endswith(ending)), None)
        if found is None or (self.kind is not None and found.kind is not self._kind_by_ending):
            return False
        return with_texts or found.kind is not FormatKind.TEXT

    def describe_layout(self, file_format: FileFormat) -> str:
        """For `SourceFile.layout`: what the job says that changes the rows of such a file."""
        said: dict[str, object] = {}
        if self.kind is not None:
            said["format"] = self.kind.value
        if file_format.kind is FormatKind.CSV and self.csv != PLAIN_CSV:
            said["csv"] = asdict(self.csv)
        if file_format.encoding is not None:
            said["encoding"] = file_format.encoding
        if file_format.openai is not None:
            said["openai"] = asdict(file_format.openai)
        return orjson.dumps(said).decode() if said else ""

    @property
    def _kind_by_ending(self) -> FormatKind | None:
        """The kind that endings of such files say: those of a batch file say JSONL."""
        return FormatKind.JSONL if self.kind is FormatKind.OPENAI else self.kind

    def _refine(self, file_format: FileFormat) -> FileFormat:
        match file_format.kind:
            case FormatKind.CSV:
                delimiter = self.csv.delimiter or file_format.csv.delimiter
                return replace(file_format, csv=replace(self.csv, delimiter=delimiter), encoding=self.csv_encoding)
            case FormatKind.OPENAI:
                return replace(file_format, openai=self.openai)
            case FormatKind.TEXT:
                return replace(file_format, encoding=self.text_encoding)
            case _:
                return file_format
