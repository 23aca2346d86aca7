"""vLLM's sampling parameters, made once for all requests that have the same. Does not import vLLM."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from bulkinfer.records import FORM, JsonValue

_MAX_KEPT = 4096
"""Rows may have seeds of their own, as many as there are rows."""
_MAX_KEPT_BYTES = 20_000
"""Of the parameters of one: schemas are of any size."""

# Any: vLLM's SamplingParams, whose fields differ between its versions.
Build = Callable[[Mapping[str, JsonValue]], Any]


class SamplingChoices:
    """Makes parameters with `build`, from what the job gives and what a request brings."""

    def __init__(self, of_job: Mapping[str, JsonValue], build: Build) -> None:
        """Make the job's own. Raises what `build` raises for values that vLLM refuses."""
        self._of_job = of_job
        self._build = build
        self._kept = {_name({}): build(of_job)}

    def find(self, own: Mapping[str, JsonValue]) -> Any:  # noqa: ANN401
        """The job's parameters, with those that a request brings before them. Raises as `build` does."""
        name = _name(own)
        found = self._kept.get(name)
        if found is None:
            found = self._build({**self._of_job, **own})
            if len(self._kept) < _MAX_KEPT and len(name) <= _MAX_KEPT_BYTES:
                self._kept[name] = found
        return found


def build_params(make: Callable[..., Any], make_form: Callable[..., Any], sampling: Mapping[str, JsonValue]) -> Any:  # noqa: ANN401
    """vLLM's parameters of these, with its own object for the form, and tokens as numbers, which JSON's keys are not.

    Raises what vLLM raises for values that it refuses.
    """
    given: dict[str, Any] = dict(sampling)
    if (form := given.get(FORM)) is not None:
        given[FORM] = make_form(**form)
    if (bias := given.get("logit_bias")) is not None:
        given["logit_bias"] = {int(token): value for token, value in bias.items()}
    return make(**given)


def _name(own: Mapping[str, JsonValue]) -> bytes:
    """Sorted above, and not below: the order of a schema's keys is that of an answer."""
    return orjson.dumps(dict(sorted(own.items())))
