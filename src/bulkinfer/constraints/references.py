"""$ref: where it leads, and what comes of it."""

from collections.abc import Mapping

from bulkinfer.constraints.bounds import find_bounds_warning
from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.keywords import iter_schemas
from bulkinfer.constraints.nesting import Nesting
from bulkinfer.constraints.pointers import Schema, resolve


def find_reference_fault(schema: Schema) -> Fault | None:
    """Why the references of a valid schema cannot be followed, or describe nothing that ends; None if they are good."""
    parts = list(iter_schemas(schema))
    for path, part in parts:
        if path and "$id" in part:
            return Fault((*path, "$id"), "a schema with no $id below its top", "references then mean other places")
        if "$ref" not in part:
            continue
        reference = str(part["$ref"])
        if not reference.startswith("#"):
            return Fault((*path, "$ref"), "a reference within the schema, such as #/$defs/name", "copy it into $defs")
        if not isinstance(resolve(schema, reference)[1], Mapping | bool):
            return Fault((*path, "$ref"), "a reference to a part of the schema that exists")
    return Nesting(schema, parts).find_fault()


def find_schema_warning(schema: Schema) -> str | None:
    """What is risky about a schema without fault."""
    path = find_recursion(schema)
    if path is None:
        return find_bounds_warning(schema)
    place = ".".join(map(str, path))
    return f"{place} leads back to where it stands: answers may nest in each other until they are cut at max_tokens"


def find_recursion(schema: Schema) -> Path | None:
    """The path of a $ref that leads back to a schema around it, in a schema without fault."""
    return Nesting(schema, list(iter_schemas(schema))).find_recursion()
