"""Faults of one request, as vLLM raises them. Does not import vLLM."""

from typing import Any

import jinja2


def collect_request_faults(exceptions: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - vLLM's module
    """What rendering or adding raises for a fault of the request. Older versions have fewer classes."""
    names = ("VLLMClientError", "VLLMValidationError", "VLLMUnprocessableEntityError")
    known = (getattr(exceptions, name, None) for name in names)
    return (ValueError, TypeError, jinja2.TemplateError, *(fault for fault in known if fault is not None))


def describe_fault(error: Exception) -> str:
    """Without the text of the error: it may quote the prompt."""
    parameter = getattr(error, "parameter", None)
    about = f" about its parameter {parameter}" if isinstance(parameter, str) else ""
    return f"vLLM refused the request: {type(error).__name__}{about}"
