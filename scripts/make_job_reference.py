"""Renew the reference in docs/jobs.md: every key of the job file, from its JSON Schema.

python scripts/make_job_reference.py
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bulkinfer.job import json_schema

PAGE = Path(__file__).parents[1] / "docs" / "jobs.md"
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"

_PLURALS = {"a text": "texts", "a number": "numbers", "a section": "sections", "a mapping": "mappings"}
_WORDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text"}

Schema = Mapping[str, Any]


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{describe_schema(json_schema())}\n{END}{after}", encoding="utf-8")


def describe_schema(schema: Schema) -> str:
    """A table of the sections, and one of the keys of each."""
    definitions = schema["$defs"]
    lines = ["| section | | what |", "|---|---|---|"]
    sections = []
    for name, section in schema["properties"].items():
        variants = [definitions[ref] for ref in _iter_refs(section)]
        must = "must be given" if name in schema["required"] else ""
        link = f"[`{name}`](#{name})" if variants else f"`{name}`"
        told = section.get("description") or variants[0].get("description", "")
        lines.append(f"| {link} | {must} | {_cell(told)} |")
        if variants:
            sections.append((name, variants))
    for name, variants in sections:
        lines += ["", f"### {name}"]
        for variant in variants:
            lines += ["", *_describe_section(variant, definitions, is_one_of_many=len(variants) > 1)]
    return "\n".join(lines)


def _describe_section(section: Schema, definitions: Schema, *, is_one_of_many: bool) -> Iterator[str]:
    if is_one_of_many:
        kind = section["properties"]["kind"].get("const", "")
        yield f"`kind: {kind}`: {section.get('description', '')}"
        yield ""
    yield "| key | value | default | what |"
    yield "|---|---|---|---|"
    for key, value in section["properties"].items():
        nested = [definitions[ref] for ref in _iter_refs(value)]
        yield _describe_key(section, key, definitions, told=nested[0].get("description", "") if nested else "")
        for inner in nested:
            for inner_key in inner.get("properties", {}):
                yield _describe_key(inner, inner_key, definitions, within=f"{key}.")


def _describe_key(section: Schema, key: str, definitions: Schema, *, within: str = "", told: str = "") -> str:
    """One line; `told`: what it is for where the key itself does not say."""
    value = section["properties"][key]
    default = "must be given" if key in section.get("required", ()) else _tell_default(value)
    what = _cell(_tell_what(value) or told)
    return f"| `{within}{key}` | {_cell(_tell_type(value, definitions))} | {default} | {what} |"


def _tell_what(value: Schema) -> str:
    told = str(value.get("description", ""))
    examples = [_code(example) for example in value.get("examples", ())]
    return f"{told} Such as {', '.join(examples)}." if examples else told


def _tell_default(value: Schema) -> str:
    default = value.get("default")
    return "" if default is None or default in ([], {}) else _code(default)


def _tell_type(value: Schema, definitions: Schema) -> str:
    """The values that a key takes, in words."""
    constants = [value["const"]] if "const" in value else value.get("enum", ())
    if constants:
        return ", ".join(_code(one) for one in constants)
    if "$ref" in value:
        return _tell_type(definitions[str(value["$ref"]).rpartition("/")[2]], definitions)
    if choices := value.get("anyOf") or value.get("oneOf"):
        told = [_tell_type(one, definitions) for one in choices if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(told))
    kind = str(value.get("type"))
    if kind == "array":
        return f"a list of {_PLURALS.get(inner := _tell_type(value.get('items', {}), definitions), inner)}"
    if kind == "object":
        return "a section" if "properties" in value else "a mapping"
    return _WORDS.get(kind, "any value") + _tell_range(value)


def _tell_range(value: Schema) -> str:
    low, above = value.get("minimum"), value.get("exclusiveMinimum")
    high, below = value.get("maximum"), value.get("exclusiveMaximum")
    told = []
    if low is not None or above is not None:
        told.append(f"from {low:,}" if low is not None else f"above {above:,},")
    if high is not None or below is not None:
        told.append(f"to {high:,}" if high is not None else f"below {below:,}")
    return f" {' '.join(told)}".rstrip(" ,")


def _iter_refs(value: Schema) -> Iterator[str]:
    """The definitions that a value may be, through lists and choices."""
    if "$ref" in value:
        yield str(value["$ref"]).rpartition("/")[2]
    choices: Sequence[Schema] = (*value.get("anyOf", ()), *value.get("oneOf", ()))
    items = value.get("items")
    for one in (*choices, *((items,) if isinstance(items, Mapping) else ())):
        yield from _iter_refs(one)


def _code(value: object) -> str:
    told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"`{told}`".replace("\n", "\\n")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
