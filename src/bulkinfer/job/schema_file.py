"""`task.schema` as the path of a file: what stands in the file takes its place.

So all that comes after, the identity of the task and the store included, sees the schema alone.
"""

import json
import os
from pathlib import Path

from bulkinfer.constraints import find_unwritable
from bulkinfer.errors import JobError
from bulkinfer.job.document import Plain
from bulkinfer.job.explain import Origins
from bulkinfer.job.nearest import find_nearest

MAX_SCHEMA_BYTES = 1_000_000


def inline_schema(values: dict[str, Plain], folder: Path, origins: Origins) -> dict[str, Plain]:
    """The job's values, with the schema itself where the path of one was. Raises JobError for a file that has none."""
    task = values.get("task")
    text = task.get("schema") if isinstance(task, dict) else None
    if not isinstance(task, dict) or not isinstance(text, str):
        return values
    name = origins.name(("task", "schema"))
    try:
        path = folder / os.path.expanduser(text)  # noqa: PTH111 - Path.expanduser raises for a user that does not exist
        raw = _read(path)
    except FileNotFoundError:
        raise JobError(f"{name}: the file {text} does not exist{_suggest(path)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise JobError(f"{name}: the file {text} cannot be read: {reason}") from None
    if len(raw) > MAX_SCHEMA_BYTES:
        raise JobError(f"{name}: the file {text} has more than {MAX_SCHEMA_BYTES:,} bytes")
    try:
        schema = json.loads(raw)
    except UnicodeDecodeError:
        raise JobError(f"{name}: the file {text} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise JobError(f"{name}: {text}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise JobError(f"{name}: the file {text} has too many levels") from None
    except ValueError:
        raise JobError(f"{name}: the file {text} has a number with too many digits") from None
    if (expected := _find_unwritable(schema)) is not None:
        raise JobError(f"{name}: the file {text} holds something else than {expected}")
    if not isinstance(schema, dict):
        raise JobError(f"{name}: the file {text} holds no JSON Schema: expected an object")
    return {**values, "task": {**task, "schema": schema}}


def _find_unwritable(value: Plain) -> str | None:
    match value:
        case dict():
            return next(filter(None, map(_find_unwritable, (*value, *value.values()))), None)
        case list():
            return next(filter(None, map(_find_unwritable, value)), None)
    return find_unwritable(value)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_SCHEMA_BYTES + 1)


def _suggest(path: Path) -> str:
    try:
        names = sorted(other.name for other in path.parent.iterdir() if other.suffix == ".json")
    except OSError:
        return ""
    nearest = find_nearest(path.name, names) or (names[0] if len(names) == 1 else None)
    return f"; did you mean {path.parent / nearest}?" if nearest else ""
