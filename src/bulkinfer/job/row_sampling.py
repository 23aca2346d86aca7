"""Sampling parameters that a document brings itself: the same checks as in the job file, value by value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from bulkinfer.constraints import most_tokens
from bulkinfer.job.classify_spec import ClassifyTask
from bulkinfer.job.explain import tell_expected
from bulkinfer.job.response_format import FormFault, FormReader
from bulkinfer.job.sampling_spec import GREEDY, SamplingSpec
from bulkinfer.job.task_spec import TaskSpec
from bulkinfer.records import FORM, JsonValue

_FORM_COLUMN = "response_format"
_WHOLE = frozenset({"max_tokens", "top_k", "seed", "n", "logprobs"})


@dataclass(frozen=True, slots=True)
class RowFault:
    """Why the parameters of one document cannot be used."""

    message: str
    """Names key, field and what was expected; never quotes the document."""


class RowSampling:
    """Reads the parameters that `sampling.columns` names."""

    def __init__(self, sampling: SamplingSpec, task: TaskSpec | None = None) -> None:
        self._choices = task.choices if isinstance(task, ClassifyTask) else ()
        self._least_tokens = most_tokens(self._choices) if self._choices else 1
        self._fields = {} if sampling.columns is None else sampling.columns.to_fields()
        self._of_job = sampling.to_engine()
        self._form_field = self._fields.pop(_FORM_COLUMN, None)
        self._forms = FormReader()
        self._checks = {name: _create_check(name) for name in self._fields}

    @property
    def fields(self) -> frozenset[str]:
        """The fields of a document that it reads."""
        return frozenset((*self._fields.values(), *([] if self._form_field is None else [self._form_field])))

    @property
    def parameters(self) -> tuple[str, ...]:
        """What documents may bring, by vLLM's names."""
        return tuple(sorted((*self._fields, *([] if self._form_field is None else [FORM]))))

    def read(self, fields: Mapping[str, JsonValue]) -> dict[str, JsonValue] | RowFault:
        """The parameters of one document, those that are neither absent nor null, by vLLM's names."""
        found: dict[str, JsonValue] = {}
        for name, field in self._fields.items():
            value = fields.get(field)
            if value is None:
                continue
            try:
                checked = self._checks[name].validate_python(_as_written(name, value))
            except ValidationError as error:
                expected = tell_expected(error.errors(include_url=False)[0])
                return self._refuse(name, expected)
            found[name] = list(checked) if isinstance(checked, tuple) else checked
        if self._form_field is not None and (value := fields.get(self._form_field)) is not None:
            form = self._forms.read(value)
            if isinstance(form, FormFault):
                return _refuse(_FORM_COLUMN, self._form_field, form.expected)
            if form is not None:
                found[FORM] = form
        return self._check_label(found) or self._check_answers(found)

    def _check_label(self, found: Mapping[str, JsonValue]) -> RowFault | None:
        """A label must not be cut; what the job itself says is checked with it."""
        most, stops = found.get("max_tokens"), found.get("stop", ())
        if isinstance(most, int) and most < self._least_tokens:
            return self._refuse("max_tokens", f"at least {self._least_tokens}, which the longest choice may take")
        assert isinstance(stops, Sequence)
        if any(isinstance(stop, str) and stop in choice for stop in stops for choice in self._choices):
            return self._refuse("stop", "no text that is part of a choice")
        return None

    def _refuse(self, name: str, expected: str) -> RowFault:
        return _refuse(name, self._fields[name], expected)

    def _check_answers(self, found: dict[str, JsonValue]) -> dict[str, JsonValue] | RowFault:
        drawn = {"n": 1, **self._of_job, **found}
        num_answers, temperature = drawn["n"], drawn["temperature"]
        assert isinstance(num_answers, int)
        assert isinstance(temperature, int | float)
        if num_answers > 1 and temperature < GREEDY:
            return RowFault(f"sampling: expected a temperature above 0 for n {num_answers}: all answers would be equal")
        return found


def _refuse(column: str, field: str, expected: str) -> RowFault:
    return RowFault(f"sampling.columns.{column}: the field {field}: expected {expected}")


def _create_check(name: str) -> TypeAdapter[Any]:
    field = SamplingSpec.model_fields[name]
    annotation: Any = field.annotation
    for constraint in field.metadata:
        annotation = Annotated[annotation, constraint]
    return TypeAdapter(annotation, config=SamplingSpec.model_config)


def _as_written(name: str, value: JsonValue) -> JsonValue:
    """A whole number that a table holds as a float, as a column with nulls does, is a whole number."""
    if name in _WHOLE and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
