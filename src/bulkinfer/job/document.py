"""YAML text -> plain values, each with the place where it stands.

Stricter than PyYAML: a key given twice, a second document, a tag, too many levels and too many aliases are errors.
Closer to JSON: dates stay texts, `1e-3` is a number and `1:30` is not. PyYAML builds nodes; values are built here,
because only nodes know their places.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from bulkinfer.constraints import find_unwritable

MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Aliases make a short file expand without end; no job file that somebody wrote comes near."""
MAX_FILE_CHARS = 4_000_000

KeyPath = tuple[str | int, ...]
Plain = Any
"""A value as JSON has it. The recursive type would need a cast at every step."""
_SCALAR_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str"))
_MERGE_TAG = "tag:yaml.org,2002:merge"
QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
"""What a message of PyYAML, or of Jinja, quotes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column, from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """Plain values, as JSON has them, and where each key stands; list elements stand where they begin."""

    value: Plain
    places: dict[KeyPath, Place]


class YamlFault(Exception):
    """The text is not a YAML document that we take. The caller knows the file's name."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place


def parse_yaml(text: str) -> YamlDocument:
    """Parse one YAML document. An empty one is None. Raises YamlFault."""
    if len(text) > MAX_FILE_CHARS:
        raise YamlFault(f"the file has {len(text)} characters; a job file has at most {MAX_FILE_CHARS}")
    node = compose_yaml(text)
    builder = _Builder()
    return YamlDocument(None if node is None else builder.build(node, (), 0), builder.places)


def compose_yaml(text: str) -> yaml.Node | None:
    """The tree of nodes of one YAML document; None for an empty one. Raises YamlFault."""
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(before.count("\n") + 1, error.position - before.rfind("\n"))
        raise YamlFault("not valid YAML: a control character or other character that YAML forbids", place) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f"{error.context}, " if error.context else ""
        problem = QUOTED.sub(_hide_quoted, f"{context}{error.problem}")
        raise YamlFault(f"not valid YAML: {problem}"[:200], _place_of(mark) if mark else None) from None
    except (ValueError, OverflowError):
        # PyYAML turns "\UFFFFFFFF" into a character and "%YAML 1.<5000 digits>" into a number without looking.
        raise YamlFault("not valid YAML: a number or an escape that is out of range") from None


def _hide_quoted(match: re.Match[str]) -> str:
    """PyYAML quotes what it found, which may be a word of the prompt; signs and its own <words> are kept."""
    quoted = match[0]
    return quoted if len(quoted) <= len(r"'\t'") or quoted[1] == "<" else "..."


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with resolvers closer to JSON's types, and a limit to nesting."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":bool", ":null", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it out
        if fault := self._fault_of(event):
            raise YamlFault(fault, _place_of(event.start_mark))
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _fault_of(self, event: yaml.Event) -> str | None:
        if self._depth > 2 * MAX_DEPTH:
            return f"more than {MAX_DEPTH} levels"
        # PyYAML's own messages quote the name, and a prompt that begins with * or & makes its first word one.
        match event:
            case yaml.AliasEvent() if event.anchor not in self.anchors:
                return "not valid YAML: an alias (*name) without its anchor; put a text that begins with * in quotes"
            case yaml.NodeEvent() if event.anchor in self.anchors and not isinstance(event, yaml.AliasEvent):
                return "not valid YAML: an anchor (&name) given twice; put a text that begins with & in quotes"
        return None


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0|[1-9][0-9_]{0,40}|0x[0-9a-fA-F]{1,32}|0o?[0-7]{1,40})$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


@dataclass(slots=True)
class _Builder:
    """Values of a tree of nodes, and the places of its keys."""

    places: dict[KeyPath, Place] = field(default_factory=dict)
    num_values: int = 0

    def build(self, node: yaml.Node, path: KeyPath, depth: int) -> Plain:
        self.num_values += 1
        if depth > MAX_DEPTH or self.num_values > MAX_VALUES:
            raise YamlFault(
                "too many levels or values; do aliases (*name) repeat each other?", _place_of(node.start_mark)
            )
        self.places.setdefault(path, _place_of(node.start_mark))
        match node:
            case yaml.ScalarNode():
                return build_scalar(node)
            case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                return [self.build(child, (*path, i), depth + 1) for i, child in enumerate(node.value)]
            case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                return self._build_mapping(node, path, depth)
        raise _refused_tag(node)

    def _build_mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, Plain]:
        values: dict[str, Plain] = {}
        for key, key_node, value_node in _own_entries(node):
            self.places.setdefault((*path, key), _place_of(key_node.start_mark))
            values[key] = self.build(value_node, (*path, key), depth + 1)
        for merged in _merged_nodes(node):
            # A key of the mapping itself wins over a merged one, and an earlier merged one over a later.
            values = {**self._build_merged(merged, path, depth + 1), **values}
        return values

    def _build_merged(self, node: yaml.Node, path: KeyPath, depth: int) -> dict[str, Plain]:
        if not isinstance(node, yaml.MappingNode):
            raise YamlFault("<<: expected a mapping or a list of mappings", _place_of(node.start_mark))
        value: dict[str, Plain] = self.build(node, path, depth)
        return value


def build_scalar(node: yaml.ScalarNode) -> Plain:
    """The value of one scalar. Raises YamlFault for a tag that is not of JSON's types."""
    if node.tag not in _SCALAR_TAGS:
        raise _refused_tag(node)
    try:
        value: Plain = _Loader("").construct_object(node)
    except (ValueError, LookupError, OverflowError, yaml.YAMLError):
        # An explicit tag on a text that does not fit it: `!!int abc`, `!!bool maybe`.
        raise YamlFault(
            f"{node.tag.rpartition(':')[2]}: the text does not fit its tag", _place_of(node.start_mark)
        ) from None
    if isinstance(value, str):
        value = _join_halves(value)
    if (expected := find_unwritable(value)) is not None:
        raise YamlFault(f"expected {expected}", _place_of(node.start_mark))
    return value


def _join_halves(text: str) -> str:
    """JSON writes a character beyond the first 65,536 as two halves, and YAML takes each for one."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _own_entries(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    seen: dict[str, Place] = {}
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE_TAG:
            continue
        place = _place_of(key_node.start_mark)
        key = build_scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise YamlFault("expected a text as key; put it in quotes", place)
        if key in seen:
            raise YamlFault(f"{shorten_key(key)}: given twice, first in line {seen[key].line}; remove one", place)
        seen[key] = place
        yield key, key_node, value_node


def _merged_nodes(node: yaml.MappingNode) -> Iterator[yaml.Node]:
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE_TAG:
            yield from value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]


def shorten_key(key: str) -> str:
    """A key as messages show it: as it stands when it is a plain word. Anything else may be a line of a prompt."""
    return key or "''" if re.fullmatch(r"\$?[\w.-]{0,60}", key, re.ASCII) else f"<{len(key)} characters>"


def _refused_tag(node: yaml.Node) -> YamlFault:
    advice = "write plain values, and put a text that begins with ! in quotes"
    return YamlFault(f"a YAML tag (!name) is not allowed; {advice}", _place_of(node.start_mark))


def _place_of(mark: yaml.Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)
