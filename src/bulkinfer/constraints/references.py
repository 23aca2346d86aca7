"""$ref: where it leads, and whether what it describes can come to an end."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.keywords import Schema, iter_schemas
from bulkinfer.records import JsonValue


def find_reference_fault(schema: Schema) -> Fault | None:
    """Why the references of a valid schema cannot be followed, or describe nothing that ends; None if they are good."""
    for path, part in iter_schemas(schema):
        if "$ref" not in part:
            if path and "$id" in part:
                return Fault((*path, "$id"), "a schema with no $id below its top", "references then mean other places")
            continue
        reference = str(part["$ref"])
        if not reference.startswith("#"):
            return Fault((*path, "$ref"), "a reference within the schema, such as #/$defs/name", "copy it into $defs")
        if not isinstance(_resolve(schema, reference), Mapping | bool):
            return Fault((*path, "$ref"), "a reference to a part of the schema that exists")
    return _find_endless(schema) or _find_circle(schema)


def find_schema_warning(schema: Schema) -> str | None:
    """What is risky about a schema without fault."""
    path = find_recursion(schema)
    if path is None:
        return None
    place = ".".join(map(str, path))
    return f"{place} leads back to where it stands: answers may nest in each other until they are cut at max_tokens"


def find_recursion(schema: Schema) -> Path | None:
    """The path of a $ref that leads back to a schema around it: answers may nest in it as deep as there are tokens."""
    for path, part in iter_schemas(schema):
        if "$ref" in part and _leads_back(schema, str(part["$ref"]), path):
            return (*path, "$ref")
    return None


def _leads_back(schema: Schema, first: str, origin: Path) -> bool:
    """Whether the place of this reference, or what it refers to in turn, holds the place `origin`."""
    seen, open_ones = {first}, [first]
    while open_ones:
        reference = open_ones.pop()
        place = _path_of(reference)
        if tuple(map(str, origin[: len(place)])) == place:
            return True
        target = _resolve(schema, reference)
        if isinstance(target, Mapping):
            inner = {str(part["$ref"]) for _, part in iter_schemas(target) if "$ref" in part}
            open_ones += inner - seen
            seen |= inner
    return False


def _find_circle(schema: Schema) -> Fault | None:
    """A $ref that leads to itself without a step into the value: nothing can be checked by it."""
    for path, part in iter_schemas(schema):
        if "$ref" not in part:
            continue
        open_ones, seen = [part], set[int]()
        while open_ones:
            for inner in _iter_same_value(schema, open_ones.pop()):
                if inner is part:
                    return Fault((*path, "$ref"), "a reference that leads elsewhere", "it describes nothing")
                if id(inner) not in seen:
                    seen.add(id(inner))
                    open_ones.append(inner)
    return None


def _iter_same_value(schema: Schema, part: Mapping[str, JsonValue]) -> Iterator[Mapping[str, JsonValue]]:
    """Schemas that hold for the value for which `part` does."""
    direct = [_resolve(schema, str(part["$ref"]))] if "$ref" in part else []
    for inner in (*direct, *(one for key in ("allOf", "anyOf", "oneOf") for one in _list(part.get(key)))):
        if isinstance(inner, Mapping):
            yield inner


def _find_endless(schema: Schema) -> Fault | None:
    """A schema without an answer that ends: each needs another of its kind in it, or a reference leads to itself."""
    parts = list(iter_schemas(schema))
    ending: set[int] = set()
    has_grown = True
    while has_grown:
        # By identity: the parts are those of one tree, and live as long as it.
        found = {id(part) for _, part in parts if id(part) not in ending and _ends(schema, part, ending)}
        ending |= found
        has_grown = bool(found)
    endless = [path for path, part in parts if id(part) not in ending]
    if not endless:
        return None
    return Fault(endless[0], "a schema that an answer can end", "each value needs another in it: make one optional")


def _ends(schema: Schema, part: Mapping[str, JsonValue], ending: set[int]) -> bool:
    """Whether `part` allows an answer that ends, as far as is known of the schemas in it."""

    def is_ending(child: JsonValue) -> bool:
        return not isinstance(child, Mapping) or id(child) in ending

    if "$ref" in part and not is_ending(_resolve(schema, str(part["$ref"]))):
        return False
    if not all(map(is_ending, _list(part.get("allOf")))):
        return False
    if any(key in part and not any(map(is_ending, _list(part[key]))) for key in ("anyOf", "oneOf")):
        return False
    if "const" in part or "enum" in part or _allows_scalar(part):
        return True
    return all(map(is_ending, _iter_required(part)))


def _allows_scalar(part: Mapping[str, JsonValue]) -> bool:
    kinds = part.get("type")
    return kinds is not None and bool(set(_list(kinds) or [kinds]) - {"object", "array"})


def _iter_required(part: Mapping[str, JsonValue]) -> Iterator[JsonValue]:
    """Schemas of which an answer holds at least one each."""
    properties = part.get("properties")
    if isinstance(properties, Mapping):
        yield from (properties[str(name)] for name in _list(part.get("required")) if str(name) in properties)
    least = part.get("minItems", 0)
    if isinstance(least, int | float) and least > 0:
        first = _list(part.get("prefixItems"))[: int(least)]
        yield from first
        if least > len(first) and "items" in part:
            yield part["items"]


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else []


def _path_of(reference: str) -> tuple[str, ...]:
    """The names in a JSON pointer; indices of lists stay texts."""
    pointer = unquote(reference[1:])
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:])


def _resolve(schema: Schema, reference: str) -> JsonValue:
    """The value at a reference within the schema; None where there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None  # an anchor
    value: JsonValue = schema
    for name in _path_of(reference):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
