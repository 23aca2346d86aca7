"""JSON pointers: places within a schema that references name."""

from collections.abc import Mapping
from urllib.parse import unquote

from bulkinfer.constraints.fault import Path
from bulkinfer.records import JsonValue

Schema = Mapping[str, JsonValue] | bool
Part = Mapping[str, JsonValue]
"""A schema that says something; `true` and `false` are schemas, too."""


def resolve(schema: Schema, reference: str) -> tuple[Path, JsonValue]:
    """The place of a reference within the schema, and the value there; None where there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return (), None  # an anchor
    value: JsonValue = schema
    path: list[str | int] = []
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            path.append(name)
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            path.append(int(name))
            value = value[int(name)]
        else:
            return (), None
    return tuple(path), value
