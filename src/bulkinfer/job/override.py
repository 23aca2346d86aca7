"""`key.path=value`, as the option `--set` has it: one value of the job file given on the command line."""

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from bulkinfer.errors import JobError
from bulkinfer.job.document import KeyPath, Plain, YamlFault, compose_yaml, parse_yaml, shorten_key


@dataclass(frozen=True, slots=True)
class Override:
    """One value and where in the job it goes."""

    path: tuple[str, ...]
    value: Plain


def parse_override(text: str) -> Override:
    """Parse `key.path=value`; the value is what YAML makes of it on one line, or the text itself.

    So `48`, `true`, `[a, b]` and `{a: 1}` are what they look like, while `*.jsonl`, `Answer: yes or no` and
    `{{ body }}` are texts. Raises JobError when there is no `=`, the key path has an empty part, or brackets or quotes
    do not close.
    """
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise JobError(f"--set {shorten_key(key.strip())}: expected key.path=value, such as limits.max_concurrency=32")
    return Override(path, _parse_value(value.strip(), ".".join(map(shorten_key, path))))


def apply_override(values: Mapping[str, Plain], override: Override) -> tuple[dict[str, Plain], set[KeyPath]]:
    """The values with the override in its place, and the paths that it made: its own and those of missing sections.

    Raises JobError when there is something else than a section on the way.
    """
    new_values = dict(values)
    made: set[KeyPath] = {override.path}
    section = new_values
    for depth, key in enumerate(override.path[:-1], start=1):
        if section.get(key) is None:
            made.add(override.path[:depth])
            section[key] = {}
        if not isinstance(section[key], dict):
            name = ".".join(map(shorten_key, override.path))
            raise JobError(f"--set {name}: {shorten_key(key)} has no keys below it; set it as a whole")
        section[key] = dict(section[key])
        section = section[key]
    section[override.path[-1]] = override.value
    return new_values, made


def _parse_value(text: str, name: str) -> Plain:
    if text.startswith(("{{", "{%", "{#")):
        return text
    try:
        return parse_yaml(text).value if _is_value(compose_yaml(text)) else text
    except YamlFault as fault:
        if text.startswith(("[", "{", '"', "'", "!")):
            raise JobError(f"--set {name}: {fault.message}; put a text in quotes") from None
        return text


def _is_value(node: yaml.Node | None) -> bool:
    """Whether YAML's reading of it is meant. Plain texts are not: YAML would drop what looks like a comment in them."""
    match node:
        case yaml.ScalarNode():
            return node.style is not None or not node.tag.endswith(":str")
        case yaml.CollectionNode():
            return bool(node.flow_style)
    return True
