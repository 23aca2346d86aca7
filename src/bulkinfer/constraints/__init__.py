"""What an answer may be made to be: one of some texts, JSON of a schema, text of a pattern. Pure.

fault         what is wrong with such a demand, and where
choices       labels that decoding can tell apart
pattern       a regular expression that Python and the engine read alike
bounds        those that no value can fulfil together
formats       what a text of a format is
keywords      the parts of JSON Schema that are held while an answer is written
pointers      places within a schema
references    $ref: where it leads
nesting       circles of references, and whether what a schema describes ever ends
depth         how deep the engine's backend goes into a schema
json_schema   the only importer of jsonschema, imported by itself: is it a schema, does an answer fit it
strict_json   JSON text -> value, and nothing that only looks like JSON

It knows neither jobs nor engines.
"""

from bulkinfer.constraints.choices import MAX_CHOICES, MAX_SCORED_CHOICES, find_choices_fault, most_tokens
from bulkinfer.constraints.fault import Fault
from bulkinfer.constraints.pattern import Matcher, MatchTooLong, cannot_fit, find_pattern_fault, find_pattern_warning
from bulkinfer.constraints.pointers import resolve
from bulkinfer.constraints.references import find_schema_warning
from bulkinfer.constraints.strict_json import JsonFault, find_unwritable, parse_strict_json, write_json

__all__ = [
    "MAX_CHOICES",
    "MAX_SCORED_CHOICES",
    "Fault",
    "JsonFault",
    "MatchTooLong",
    "Matcher",
    "cannot_fit",
    "find_choices_fault",
    "find_pattern_fault",
    "find_pattern_warning",
    "find_schema_warning",
    "find_unwritable",
    "most_tokens",
    "parse_strict_json",
    "resolve",
    "write_json",
]
