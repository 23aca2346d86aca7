"""What the simulated engine answers where the job asks for a form: a choice, JSON of a schema, text of a pattern.

The same hash gets the same answer. It fits the form, as far as the parts of it go that `constraints` allows, and means
nothing.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from bulkinfer.constraints import resolve, write_json
from bulkinfer.engines.answers import Answer
from bulkinfer.engines.scoring import Scoring, Verdict, decide_label
from bulkinfer.engines.simulated_arguments import FaultKind
from bulkinfer.engines.simulated_match import write_match
from bulkinfer.engines.white_space import MAX_RUN_CHARS
from bulkinfer.records import FinishReason, JsonValue

_MAX_DEPTH = 4
"""Below it nothing is added that need not be there."""
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven")
_FORMATS = {
    "date": "2026-03-01",
    "date-time": "2026-03-01T12:00:00Z",
    "duration": "P3D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uuid": "0b0e7a52-6c3f-4c58-9f53-0d6c1f6b8a11",
}
_CHARS_PER_TOKEN = 4
_MISFITS: tuple[JsonValue, ...] = (None, 0, "", [], {})
"""One of them fits no schema that says anything."""
Schema = Mapping[str, Any]


def draft_answer(
    document_hash: bytes,
    form: Mapping[str, JsonValue],
    max_tokens: int,
    fault: FaultKind | None,
    scoring: Scoring | None = None,
) -> Answer:
    """The answer to a document, with what a scripted fault does to it. A token for 4 characters, and one at the end."""
    text = write_structured(document_hash, form) if scoring is None else score(document_hash, scoring).label
    match fault:
        case FaultKind.BROKEN:
            text = f"?{text}"
        case FaultKind.MISMATCH:
            text = _misfit(form) or f"?{text}"
        case FaultKind.WHITE_SPACE:
            num_chars = min(MAX_RUN_CHARS, _CHARS_PER_TOKEN * max_tokens - 1)
            reason = FinishReason.WHITE_SPACE if num_chars == MAX_RUN_CHARS else FinishReason.LENGTH
            return Answer(text[:1] + " " * num_chars, reason, -(-(num_chars + 1) // _CHARS_PER_TOKEN))
        case FaultKind.TRUNCATE:
            return Answer(text[: len(text) // 2], FinishReason.LENGTH, max_tokens)
    num_tokens = 1 + -(-len(text) // _CHARS_PER_TOKEN)
    if num_tokens > max_tokens:
        return Answer(text[: _CHARS_PER_TOKEN * max_tokens], FinishReason.LENGTH, max_tokens)
    return Answer(text, FinishReason.STOP, num_tokens)


def _misfit(form: Mapping[str, JsonValue]) -> str | None:
    schema = form.get("json")
    if not isinstance(schema, Mapping):
        return None
    from bulkinfer.constraints.json_schema import SchemaChecker  # noqa: PLC0415 - only such jobs need it

    checker = SchemaChecker(schema)
    return next((write_json(value) for value in _MISFITS if checker.find_fault(value) is not None), None)


def write_structured(document_hash: bytes, form: Mapping[str, JsonValue]) -> str:
    """An answer of the form that vLLM's `structured_outputs` would hold: one of `choice`, `json` and `regex`."""
    draw = Random(document_hash)  # noqa: S311 - nothing is secret here
    match form:
        case {"choice": list() | tuple() as choices}:
            return str(draw.choice(choices))
        case {"regex": str(pattern)}:
            return write_match(pattern, draw)
        case {"json": Mapping() as schema}:
            return write_json(_Writer(schema, draw).write(schema, 0))
    raise AssertionError("a form that no task asks for")


def score(document_hash: bytes, scoring: Scoring) -> Verdict:
    """The label of a document whose choices are scored."""
    prior = None if scoring.prior is None else score_prior(scoring)
    return decide_label(scoring, _draw_probabilities(document_hash, scoring.choices), prior)


def score_prior(scoring: Scoring) -> dict[str, float]:
    """How probable each choice is without a document."""
    return _draw_probabilities(b"an empty document", scoring.choices)


def _draw_probabilities(document_hash: bytes, choices: Sequence[str]) -> dict[str, float]:
    """By the hash alone, all together 1."""
    draw = Random(document_hash)  # noqa: S311
    weights = [draw.expovariate(1.0) + 1e-3 for _ in choices]
    return {choice: weight / sum(weights) for choice, weight in zip(choices, weights, strict=True)}


class _Writer:
    """Writes one value that fits a schema."""

    def __init__(self, root: Schema, draw: Random) -> None:
        self._root = root
        self._draw = draw

    def write(self, schema: Any, depth: int) -> JsonValue:  # noqa: ANN401 - a schema, or true
        if not isinstance(schema, Mapping):
            return None
        schema = self._flatten(schema, depth)
        named = [schema["const"]] if "const" in schema else schema.get("enum")
        if named:
            chosen: JsonValue = self._draw.choice(named)
            return chosen
        return self._write_of(self._choose_type(schema), schema, depth)

    def _write_of(self, kind: str, schema: Schema, depth: int) -> JsonValue:
        match kind:
            case "object":
                return self._write_object(schema, depth)
            case "array":
                return self._write_array(schema, depth)
            case "string":
                return self._write_text(schema)
            case "integer" | "number":
                return self._write_number(schema, is_whole=kind == "integer")
            case "boolean":
                return self._draw.random() < 0.5
        return None

    def _flatten(self, schema: Schema, depth: int) -> Schema:
        """One schema of references, branches and sums of schemas. Deep down the shortest branch is taken."""
        flat = dict(schema)
        while parts := [key for key in ("$ref", "allOf", "anyOf", "oneOf") if key in flat]:
            value = flat.pop(parts[0])
            match parts[0]:
                case "$ref":
                    found = [resolve(self._root, value)[1]]
                case "allOf":
                    found = value
                case _:
                    shortest = min(value, key=lambda branch: len(write_json(branch)))
                    found = [shortest if depth > _MAX_DEPTH else self._draw.choice(value)]
            for one in found:
                flat = _merge(flat, one)
        return flat

    def _choose_type(self, schema: Schema) -> str:
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return str(self._draw.choice(kinds))
        hints = {"properties": "object", "required": "object", "items": "array", "prefixItems": "array"}
        hints |= {"pattern": "string", "format": "string", "minLength": "string", "minimum": "number"}
        return str(kinds or next((kind for key, kind in hints.items() if key in schema), "null"))

    def _write_object(self, schema: Schema, depth: int) -> JsonValue:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = schema.get("required", [])
        written = {
            name: self.write(child, depth + 1)
            for name, child in properties.items()
            if name in required or (depth < _MAX_DEPTH and child is not False and self._draw.random() < 0.5)
        }
        further = schema.get("additionalProperties")
        written |= {name: self.write(further, depth + 1) for name in required if name not in properties}
        more = {**properties, **{f"key{number}": further for number in range(schema.get("minProperties", 0))}}
        for name, child in more.items():
            if len(written) < schema.get("minProperties", 0) and name not in written:
                written[name] = self.write(child, depth + 1)
        return written

    def _write_array(self, schema: Schema, depth: int) -> JsonValue:
        least = int(schema.get("minItems", 0))
        most = min(int(schema.get("maxItems", least + 2)), least + (2 if depth < _MAX_DEPTH else 0))
        first, rest = schema.get("prefixItems", []), schema.get("items", {"type": "null"})
        count = self._draw.randint(least, max(least, most))
        if rest is False:
            count = min(count, len(first))
        return [self.write(first[place] if place < len(first) else rest, depth + 1) for place in range(count)]

    def _write_text(self, schema: Schema) -> str:
        if "pattern" in schema:
            return write_match(schema["pattern"], self._draw)
        if "format" in schema:
            return _FORMATS.get(schema["format"], "")
        least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 40))
        text = self._draw.choice(_WORDS)
        return (text * (1 + least // len(text)))[: max(least, min(most, len(text)))]

    def _write_number(self, schema: Schema, *, is_whole: bool) -> JsonValue:
        step = schema.get("multipleOf", 1 if is_whole else 0.5)
        least = schema.get("minimum", schema.get("exclusiveMinimum", min(0, schema.get("maximum", 0))))
        first = -(-least // step) + ("exclusiveMinimum" in schema)
        most = schema.get("maximum", schema.get("exclusiveMaximum", first * step + 9 * step))
        last = most // step - ("exclusiveMaximum" in schema and most % step == 0)
        value = self._draw.randint(int(first), max(int(first), int(last))) * step
        return int(value) if is_whole else value


def _merge(one: Schema, other: Any) -> dict[str, Any]:  # noqa: ANN401
    """Both schemas at once, as far as writing goes."""
    if not isinstance(other, Mapping):
        return dict(one)
    merged = {**other, **one}
    if "properties" in one and "properties" in other:
        merged["properties"] = {**other["properties"], **one["properties"]}
    if "required" in one and "required" in other:
        merged["required"] = [*other["required"], *one["required"]]
    return merged
