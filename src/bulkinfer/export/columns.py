"""The columns of an export: the input's own first, under their names, then the answers'.

An answer's column whose name the input has already, in upper or lower case, is called `bulkinfer_<name>`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from bulkinfer.errors import JobError
from bulkinfer.job import find_nearest
from bulkinfer.sources import Shape, has_json_values, to_texts
from bulkinfer.store import ListedRun

PREFIX = "bulkinfer_"
ROW_FIELDS = ("document_id", "source", "row")
"""Which row of the input it is; before the answer's fields."""
HASH_FIELD = "document_hash"
_ROW_TYPES = {"document_id": pa.string(), "source": pa.string(), "row": pa.int64(), HASH_FIELD: pa.string()}

ChooseType = Callable[[pa.DataType], pa.DataType | None]
"""The type that a format writes a column of some type as: the same, text, or None where it can be neither."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What is written, in order."""

    originals: pa.Schema
    """Columns of the input, with the types that they are written as."""
    answers: tuple[tuple[str, str], ...]
    """The name that it gets, and the field that it is."""
    types: tuple[pa.DataType, ...]
    """Of the answers' columns."""
    is_whole: bool
    """Whether all columns of the input are there."""

    @property
    def schema(self) -> pa.Schema:
        """Of the whole export."""
        added = [pa.field(name, kind) for (name, _), kind in zip(self.answers, self.types, strict=True)]
        return pa.schema([*self.originals, *added])

    @property
    def fields(self) -> tuple[str, ...]:
        """The answers' fields that the store has to tell."""
        return tuple(field for _, field in self.answers if field not in _ROW_TYPES)

    @property
    def names(self) -> tuple[str, ...]:
        """Of these, in the export."""
        return tuple(name for name, field in self.answers if field not in _ROW_TYPES)


NO_COLUMNS = Columns(pa.schema([]), (), (), is_whole=False)
"""Of a format that has its own."""


@dataclass(frozen=True, slots=True)
class PlannedColumns:
    """The columns, and what people should know about them."""

    columns: Columns
    notes: tuple[str, ...]


def plan_columns(
    shapes: Sequence[Shape], run: ListedRun, chosen: Sequence[str] | None, choose_type: ChooseType
) -> PlannedColumns:
    """Decide on names and types. `chosen`: the names that are wanted; None: all. Raises JobError for an unknown one."""
    merged = _merge([shape.schema for shape in shapes])
    fields = (*ROW_FIELDS, *run.fields, HASH_FIELD)
    taken = {name.casefold() for name in merged.names}
    renamed = {field: _free_name(field, taken) for field in fields}
    notes = [
        f"the input has a column {field}: the answers' is called {name}"
        for field, name in renamed.items()
        if name != field
    ]
    wanted = _check_chosen(chosen, [*merged.names, *renamed.values()])
    originals = []
    for field in merged:
        if wanted is not None and field.name not in wanted:
            continue
        kind = choose_type(field.type)
        if kind is None:
            notes.append(f"the column {field.name} is left out: its type, {field.type}, cannot be written")
        else:
            originals.append(pa.field(field.name, kind))
    answers = [(name, field) for field, name in renamed.items() if wanted is None or name in wanted]
    types = tuple(_type_of(run, field, choose_type) for _, field in answers)
    columns = Columns(pa.schema(originals), tuple(answers), types, is_whole=len(originals) == len(merged))
    shown = {name for name, _ in answers}
    kept = [note for note in notes if not note.startswith("the input has") or note.rpartition(" ")[2] in shown]
    return PlannedColumns(columns, tuple(kept))


def fit(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column with the type that it is written as. Raises JobError for a value that would be another in it."""
    if array.type == kind:
        return array
    if pa.types.is_string(kind) and not _is_text(array.type):
        return to_texts(array)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        raise JobError(
            f"the column {name} is {array.type} in one file of the input and becomes {kind} with the others, which "
            "does not hold all of its values; leave it out with --columns, export to JSONL, or give it one type"
        ) from None


def as_text_or_nothing(kind: pa.DataType) -> pa.DataType | None:
    """For a type that a format does not know."""
    return pa.string() if has_json_values(kind) else None


def _merge(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All columns of all files; where their types have nothing in common, texts."""
    types: dict[str, list[pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            types.setdefault(field.name, []).append(field.type)
    return pa.schema([pa.field(name, _merge_types(found)) for name, found in types.items()])


def _merge_types(types: Sequence[pa.DataType]) -> pa.DataType:
    if len(set(types)) == 1:
        return types[0]
    try:
        schemas = [pa.schema([("x", kind)]) for kind in types]
        merged = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()
    return merged if all(_holds_all(merged, kind) for kind in types) else pa.string()


def _holds_all(wide: pa.DataType, kind: pa.DataType) -> bool:
    """Whether every value of one type is the same in another.

    Of whole numbers among others that is seen when they are written: hardly ever are they too long.
    """
    if kind == wide or pa.types.is_null(kind) or (_is_text(kind) and _is_text(wide)):
        return True
    if pa.types.is_integer(kind) and pa.types.is_integer(wide):
        is_signed = pa.types.is_signed_integer(wide)
        if pa.types.is_signed_integer(kind) == is_signed:
            return bool(kind.bit_width <= wide.bit_width)
        return bool(is_signed and kind.bit_width < wide.bit_width)
    if pa.types.is_float64(wide):
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
    return False


def _free_name(name: str, taken: set[str]) -> str:
    while name.casefold() in taken:
        name = PREFIX + name
    return name


def _check_chosen(chosen: Sequence[str] | None, known: Sequence[str]) -> frozenset[str] | None:
    if chosen is None:
        return None
    for name in chosen:
        if name not in known:
            nearest = find_nearest(name, known)
            advice = f"did you mean {nearest}?" if nearest else f"there are {', '.join(known[:30])}"
            raise JobError(f"--columns {name}: there is no such column; {advice}")
    return frozenset(chosen)


def _type_of(run: ListedRun, field: str, choose_type: ChooseType) -> pa.DataType:
    kind = _ROW_TYPES.get(field) or run.type_of(field)
    return choose_type(kind) or pa.string()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))
