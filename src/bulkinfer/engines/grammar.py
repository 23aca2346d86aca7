"""Whether the engine's backend can hold answers to a form. The only importer of llguidance, which comes with vLLM.

`constraints` knows which parts of JSON Schema it has, and where in a schema they stand. This is its own word, for what
shows only when all is put together: branches that exclude each other, rules that nothing fulfils, a pattern of a kind
that its regular expressions do not have.
"""

import orjson
from llguidance import LLMatcher

from bulkinfer.engines.base import EngineSpec
from bulkinfer.engines.vllm_arguments import FORM_ARGUMENT
from bulkinfer.errors import JobError

_MAX_CHARS = 300


def check_form(spec: EngineSpec) -> None:
    """Raises JobError for a schema or a pattern that the backend refuses.

    Not for a job that has chosen another backend.
    """
    if FORM_ARGUMENT in spec.arguments:
        return
    match spec.form:
        case {"json": schema}:
            key, grammar = "schema", LLMatcher.grammar_from_json_schema(orjson.dumps(schema).decode())
        case {"regex": pattern}:
            key, grammar = "regex", LLMatcher.grammar_from_regex(pattern)
        case _:
            return
    is_refused, said = LLMatcher.validate_grammar_with_warnings(grammar, None)
    if is_refused:
        reason = " ".join(" ".join(said).split())[:_MAX_CHARS]
        raise JobError(f"task.{key}: the engine cannot hold answers to it: {reason}", f"task.{key}")
