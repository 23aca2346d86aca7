"""How deep the engine's backend goes into a schema: it compiles in calls within calls, and ends its process where they
get too many.

It goes into what it meets first, and through a reference at the first one that it meets, from there as far as that
leads. So a flat schema of which many parts refer to each other may take it deep.
"""

from collections.abc import Iterator, Mapping, Sequence

from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.keywords import iter_inner
from bulkinfer.constraints.pointers import Part, Schema, resolve
from bulkinfer.records import JsonValue

MAX_LEVELS = 1_050
"""A reference counts as half: it takes 3.4 kB of the stack, other parts up to 6 kB.

Measured with llguidance 1.7.6 on a stack of 8 MiB, as threads have on Linux: it got through 1,245 levels of references
alone, 1,291 of arrays, 1,383 of objects and 1,505 of branches, with the references between them.
"""
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "const", "enum")
_BY_TYPE = {"array": ("prefixItems", "items"), "object": ("properties", "patternProperties", "additionalProperties")}


def find_depth_fault(schema: Schema) -> Fault | None:
    """Why the backend does not get through a valid schema whose references lead somewhere, or None."""
    path = find_too_deep(schema, MAX_LEVELS)
    if path is None:
        return None
    return Fault(
        path,
        f"a part to which the engine comes in {MAX_LEVELS:,} levels, references followed in the order of the keys",
        'replace a "$ref" on the way to it by what may stand there at most, such as {"type": "object"}',
    )


def find_too_deep(schema: Schema, max_levels: float) -> Path | None:
    """The first part that lies deeper, in the order in which the backend comes to them."""
    stack: list[tuple[float, Path, JsonValue, bool]] = [(0, (), schema, False)]
    followed = set[int]()
    while stack:
        level, path, part, is_referred = stack.pop()
        if not isinstance(part, Mapping) or (is_referred and id(part) in followed):
            continue
        if is_referred:
            followed.add(id(part))
        level += 0.5 if "$ref" in part else 1
        if level > max_levels:
            return path
        found: list[tuple[float, Path, JsonValue, bool]] = []
        inner = list(iter_inner(part))
        for key in _order(part):
            if key == "$ref":
                found.append((level, *resolve(schema, str(part[key])), True))
            else:
                found += [(level, (*path, *below), child, False) for below, child in inner if below[0] == key]
        stack += reversed(found)
    return None


def _order(part: Part) -> Iterator[str]:
    """The keys that hold schemas, as they are compiled: what is about the value itself in the order of the keys, and
    what is about its members, type by type, before the next of those."""
    held: list[str] = []
    for key in part:
        if key in _IN_PLACE:
            yield from _order_members(part, held)
            yield key
            held = []
        else:
            held.append(key)
    yield from _order_members(part, held)


def _order_members(part: Part, held: Sequence[str]) -> Iterator[str]:
    kinds = part.get("type", list(_BY_TYPE))
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        yield from (key for key in _BY_TYPE.get(str(kind), ()) if key in held)
