"""What schemas lead to: circles, chains of references, and whether what they describe can come to an end.

Every search here takes time in proportion to the schema: generated ones have thousands of definitions. Parts are told
apart by identity: they are those of one tree, and live as long as it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from bulkinfer.constraints.depth import find_depth_fault
from bulkinfer.constraints.fault import Fault, Path
from bulkinfer.constraints.keywords import iter_inner
from bulkinfer.constraints.pointers import Part, Schema, resolve
from bulkinfer.records import JsonValue

MAX_STEPS = 200
"""Schemas that may hold for one value by way of each other: checking an answer takes calls within calls for each."""
_IN_PLACE = ("allOf", "anyOf", "oneOf")


class Nesting:
    """The parts of a valid schema whose references lead somewhere.

    `parts`: all of them with their paths, the schema itself first, those that references lead to included.
    """

    def __init__(self, schema: Schema, parts: Sequence[tuple[Path, Part]]) -> None:
        self._schema = schema
        self._parts = parts

    def find_fault(self) -> Fault | None:
        """Why no answer fits it or can be checked by it, or None."""
        return self._find_endless() or self._find_circle() or find_depth_fault(self._schema)

    def find_recursion(self) -> Path | None:
        """The path of a $ref that leads back to a schema around it: answers nest in it as deep as there are tokens."""
        circle = _find_circle({id(part): map(id, self._iter_next(part)) for _, part in self._parts})
        return None if circle is None else self._name_reference(circle)

    def _find_circle(self) -> Fault | None:
        """A $ref that leads to itself without a step into the value, or by too many: nothing can be checked by it."""
        same_value = {id(part): list(map(id, self._iter_same_value(part))) for _, part in self._parts}
        circle = _find_circle(same_value)
        if circle is not None:
            return Fault(self._name_reference(circle), "a reference that leads elsewhere", "it describes nothing")
        paths = {id(part): path for path, part in self._parts}
        num_steps: dict[int, int] = {}
        for one in TopologicalSorter(same_value).static_order():  # what a part leads to comes before it
            num_steps[one] = 1 + max((num_steps[other] for other in same_value[one]), default=0)
            if num_steps[one] > MAX_STEPS:
                expected = f"at most {MAX_STEPS} schemas that refer to each other for one value"
                return Fault(paths[one], expected, "let them refer to the last one directly")
        return None

    def _name_reference(self, circle: Iterable[int]) -> Path:
        """Of a circle's references, the first: parts of a tree alone make no circle."""
        of_circle = set(circle)
        return next((*path, "$ref") for path, part in self._parts if id(part) in of_circle and "$ref" in part)

    def _iter_next(self, part: Part) -> Iterator[Part]:
        """Schemas in a part, and the one that it refers to."""
        inner = [child for _, child in iter_inner(part)]
        return (child for child in (*inner, *self._refer(part)) if isinstance(child, Mapping))

    def _iter_same_value(self, part: Part) -> Iterator[Part]:
        """Schemas that hold for the value for which `part` does."""
        branches = [branch for key in _IN_PLACE for branch in _list(part.get(key))]
        return (child for child in (*self._refer(part), *branches) if isinstance(child, Mapping))

    def _refer(self, part: Part) -> list[JsonValue]:
        return [resolve(self._schema, str(part["$ref"]))[1]] if "$ref" in part else []

    def _find_endless(self) -> Fault | None:
        """A schema without an answer that ends: each needs another of its kind in it, or a reference leads to itself.

        Each part waits for groups of others, one of each group: when the last of its groups has one that ends, it does.
        """
        num_open: dict[int, int] = {}
        waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        ending = []
        for _, part in self._parts:
            groups = [group for group in self._iter_groups(part) if not any(map(_is_anything, group))]
            num_open[id(part)] = len(groups)
            if not groups:
                ending.append(id(part))
            for number, group in enumerate(groups):
                for child in group:
                    waiting[id(child)].append((id(part), number))
        ended, met = set(ending), set[tuple[int, int]]()
        while ending:
            for group_of in waiting.pop(ending.pop(), ()):
                if group_of in met:
                    continue
                met.add(group_of)
                part_id = group_of[0]
                num_open[part_id] -= 1
                if num_open[part_id] == 0 and part_id not in ended:
                    ended.add(part_id)
                    ending.append(part_id)
        endless = next((path for path, part in self._parts if id(part) not in ended), None)
        if endless is None:
            return None
        return Fault(endless, "a schema that an answer can end", "each value needs another in it: make one optional")

    def _iter_groups(self, part: Part) -> Iterator[Sequence[JsonValue]]:
        """Of each group one schema has to end, so that an answer to `part` can."""
        for child in (*self._refer(part), *_list(part.get("allOf"))):
            yield (child,)
        for key in ("anyOf", "oneOf"):
            if key in part:
                yield _list(part[key])
        if not ("const" in part or "enum" in part or _allows_scalar(part)):
            for child in _iter_required(part):
                yield (child,)
            least = part.get("minProperties", 0)
            if _allows(part, "object") and isinstance(least, int | float) and least > 0:
                yield _list_members(part)


def _find_circle(graph: Mapping[int, Iterable[int]]) -> Sequence[int] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: Sequence[int] = error.args[1]
        return circle
    return None


def _is_anything(schema: JsonValue) -> bool:
    return schema is not False and not isinstance(schema, Mapping)


def _allows_scalar(part: Part) -> bool:
    kinds = part.get("type")
    return kinds is not None and bool(set(_list(kinds) or [kinds]) - {"object", "array"})


def _allows(part: Part, kind: str) -> bool:
    kinds = part.get("type")
    return kinds is None or kind in (_list(kinds) or [kinds])


def _iter_required(part: Part) -> Iterator[JsonValue]:
    """Schemas of which an answer holds at least one each."""
    properties = part.get("properties")
    if _allows(part, "object") and isinstance(properties, Mapping):
        yield from (properties[str(name)] for name in _list(part.get("required")) if str(name) in properties)
    least = part.get("minItems", 0)
    if _allows(part, "array") and isinstance(least, int | float) and least > 0:
        first = _list(part.get("prefixItems"))[: int(least)]
        yield from first
        if least > len(first) and "items" in part:
            yield part["items"]


def _list_members(part: Part) -> Sequence[JsonValue]:
    """Schemas of what an object may hold."""
    named = [part.get(key) for key in ("properties", "patternProperties")]
    inner = [child for children in named if isinstance(children, Mapping) for child in children.values()]
    return (*inner, part.get("additionalProperties", True))


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else []
