"""A job file and its overrides -> a `Job`, or one JobError that tells everything that is wrong with it."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from bulkinfer.errors import BulkinferError, InputError, JobError
from bulkinfer.job.document import MAX_FILE_CHARS, KeyPath, Plain, YamlDocument, YamlFault, parse_yaml
from bulkinfer.job.explain import Origins, describe, explain_invalid, problems_error
from bulkinfer.job.nearest import find_nearest
from bulkinfer.job.openai import fill_in_openai
from bulkinfer.job.override import apply_override, parse_override
from bulkinfer.job.schema_file import inline_schema
from bulkinfer.job.spec import JobSpec

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job that is valid, and where its file lies: paths in it are relative to the file's folder."""

    spec: JobSpec
    path: Path
    """Absolute."""
    original: JobSpec | None = None
    """The job without what `--set` changes; None where nothing is changed, or it is no valid job."""
    changed: tuple[str, ...] = ()
    """The key paths that `--set` gives."""
    has_file: bool = True
    """Or it was made of flags of the command line; `path` is a name in the folder where it was given then."""
    expanded: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """For each section the texts that environment variables made, with what is written in their place."""
    origins: Origins = field(default_factory=lambda: Origins(""), repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """The folder of the job file."""
        return self.path.parent

    @property
    def shown(self) -> str:
        """What messages call it."""
        return str(self.path) if self.has_file else self.path.name

    @property
    def target(self) -> str:
        """What other commands take for this job: its file, or its database."""
        return str(self.path if self.has_file else self.database_path)

    @property
    def input_patterns(self) -> tuple[str, ...]:
        """Files, folders and globs as the job file has them; relative ones are relative to `folder`."""
        return self.spec.input.path

    @property
    def database_path(self) -> Path:
        """Absolute and without symbolic links, so that one database has one lock."""
        return Path(self._resolve(self.spec.output.database))

    @property
    def is_local_model(self) -> bool:
        """Whether the model is a folder: it exists, or it cannot be a hub id (`name` or `owner/name`)."""
        text = self.spec.model.path
        return not _HUB_ID.fullmatch(text) or os.path.exists(self._resolve(text))  # noqa: PTH110 - Path.exists raises for a long name

    @property
    def model(self) -> str:
        """The model folder's absolute path, or the hub id."""
        return self._resolve(self.spec.model.path) if self.is_local_model else self.spec.model.path

    @property
    def adapters(self) -> dict[str, str]:
        """The absolute path of each adapter's folder, by the adapter's name."""
        return {name: self._resolve(folder) for name, folder in (self.spec.model.adapters or {}).items()}

    def place(self, error: BulkinferError) -> BulkinferError:
        """The same error, with the place of the key that it is about before it: file and line, or `--set`."""
        if error.key is None or not isinstance(error, JobError | InputError):
            return error
        rest = str(error).removeprefix(error.key)
        return type(error)(f"{self.origins.name(self.origins.find_path(error.key))}{rest}")

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Errors about its keys, found where nobody knows the file, say where they stand."""
        try:
            yield
        except BulkinferError as error:
            placed = self.place(error)
            if placed is error:
                raise
            raise placed from error

    def _resolve(self, text: str) -> str:
        # Not Path.expanduser: it raises for a user that does not exist.
        return os.path.realpath(self.folder / os.path.expanduser(text))  # noqa: PTH111


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Load and check a job file.

    `overrides` are `key.path=value`, as given to `--set`; they win over the file. `${NAME}` in a text is replaced by
    the environment variable of that name, `$${NAME}` stays as `${NAME}`. Raises JobError with one line for each problem
    found, the first ten.
    """
    return _make_job(_parse_file(path), path, overrides, has_file=True)


def create_job(values: dict[str, Plain], name: str, overrides: Sequence[str] = ()) -> Job:
    """The same of values that no file has: texts of the command line. `name` stands for the file in messages.

    Paths are relative to the folder that this runs in. `$` means nothing special: a shell has had its turn already.
    """
    literal = _double_variables(values)
    return _make_job(YamlDocument(literal, {}), Path(name), overrides, has_file=False)


def _make_job(document: YamlDocument, path: Path, overrides: Sequence[str], *, has_file: bool) -> Job:
    values, made = _override(document.value, overrides)
    expansion = _Expansion()
    values = expansion.expand(values, ())
    origins = Origins(str(path), document.places, frozenset(made), frozenset(expansion.expanded))
    if expansion.unset:
        raise problems_error([_explain_unset(name, at, origins) for at, name in expansion.unset])
    changed = tuple(".".join(parse_override(text).path) for text in overrides)
    absolute = _make_absolute(path)
    original = _find_original(document.value, absolute.parent) if overrides else None
    values = inline_schema(values, absolute.parent, origins)
    try:
        spec = JobSpec.model_validate(fill_in_openai(values))
        job = Job(spec, absolute, original, changed, has_file, expansion.texts, origins)
    except ValidationError as error:
        raise explain_invalid(error, origins) from None
    _check_paths(job, origins)
    return job


def _double_variables(value: Plain) -> Plain:
    """Texts that `_Expansion` makes these of."""
    match value:
        case str():
            return _VARIABLE.sub(lambda match: f"${match[0]}", value)
        case list():
            return [_double_variables(child) for child in value]
        case dict():
            return {key: _double_variables(child) for key, child in value.items()}
    return value


def _find_original(values: dict[str, Plain], folder: Path) -> JobSpec | None:
    """The job as the file has it. It need not be one: `--set` may give what is missing."""
    expansion = _Expansion()
    try:
        values = inline_schema(expansion.expand(values, ()), folder, Origins(""))
        spec = JobSpec.model_validate(fill_in_openai(values))
    except (ValidationError, JobError):
        return None
    return None if expansion.unset else spec


def _check_paths(job: Job, origins: Origins) -> None:
    """Refuse paths that the engine or DuckDB would take for others, or not at all."""
    if not _is_utf8(str(job.path)):
        raise JobError(f"{job.path}: the name of the job file or of a folder above it is not UTF-8; rename it")
    if not _is_utf8(job.model):
        raise JobError(f"{origins.name(('model', 'path'))}: the folder {job.model} has a name that is not UTF-8")
    name, database = origins.name(("output", "database")), str(job.database_path)
    text = job.spec.output.database
    if text.startswith("~") and os.path.expanduser(text) == text:  # noqa: PTH111 - as in Job
        user = text.partition("/")[0]
        raise JobError(f"{name}: {user} is no user with a home folder; write the whole path, or ./{text}")
    # DuckDB takes what follows a ? for parameters, and a \ for a /: both would write files of other names.
    if not _is_utf8(database) or "?" in database or "\\" in database:
        raise JobError(f"{name}: expected a path without ?, \\ and bytes that are not UTF-8, found {database}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _make_absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except FileNotFoundError:
        raise JobError(f"{path}: the folder that this runs in does not exist any more; change to another") from None


def _parse_file(path: Path) -> YamlDocument:
    try:
        document = parse_yaml(_read_text(path))
    except YamlFault as fault:
        raise JobError(f"{Origins(str(path), {(): fault.place} if fault.place else {}).name(())}: {fault}") from None
    if document.value is None:
        raise JobError(f"{path}: the job file is empty; `bulkinfer schema` tells what goes into it")
    if not isinstance(document.value, dict):
        where = Origins(str(path), document.places).name(())
        found = describe(document.value, is_private=True)
        raise JobError(f"{where}: expected keys and values at the top, such as `name: my-job`, found {found}")
    return document


def _read_text(path: Path) -> str:
    try:
        # Job files may come through a pipe; a device or a huge file must not fill the memory.
        with path.open("rb") as file:
            raw = file.read(4 * MAX_FILE_CHARS + 1)
    except FileNotFoundError:
        raise JobError(f"{path}: the job file does not exist{_suggest_file(path)}") from None
    except IsADirectoryError:
        raise JobError(f"{path}: expected a job file, found a folder{_suggest_file(path / '*.yaml')}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise JobError(f"{path}: the job file cannot be read: {reason}") from None
    if raw[8:12] == b"DUCK":  # behind a checksum, as in each DuckDB file
        raise JobError(f"{path}: is a database, and here stands a job file; name the one that its answers come from")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise JobError(f"{path}:{line}: not UTF-8 text (byte {error.start}); save the job file as UTF-8") from None


def _suggest_file(path: Path) -> str:
    try:
        names = sorted(other.name for other in path.parent.iterdir() if other.suffix in {".yaml", ".yml"})
    except (OSError, ValueError):
        return ""
    nearest = find_nearest(path.name, names) or (names[0] if len(names) == 1 else None)
    return f"; did you mean {path.parent / nearest}?" if nearest else ""


def _override(values: dict[str, Plain], texts: Sequence[str]) -> tuple[dict[str, Plain], set[KeyPath]]:
    all_made: set[KeyPath] = set()
    problems = []
    for text in texts:
        try:
            values, made = apply_override(values, parse_override(text))
            all_made |= made
        except JobError as error:
            problems.append(str(error))
    if problems:
        raise problems_error(problems)
    return values, all_made


@dataclass(slots=True)
class _Expansion:
    """`${NAME}` replaced in every text. After parsing, so that no value can bring structure with it."""

    expanded: set[KeyPath] = field(default_factory=set)
    unset: list[tuple[KeyPath, str]] = field(default_factory=list)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each section: the text that came out -> the text that is written."""

    def expand(self, value: Plain, path: KeyPath) -> Plain:
        match value:
            case str():
                text = _VARIABLE.sub(lambda match: self._replace(match, path), value)
                if path in self.expanded and text:
                    self.texts.setdefault(str(path[0]), {})[text] = value
                return text
            case list():
                return [self.expand(child, (*path, i)) for i, child in enumerate(value)]
            case dict():
                return {key: self.expand(child, (*path, key)) for key, child in value.items()}
        return value

    def _replace(self, match: re.Match[str], path: KeyPath) -> str:
        text, is_literal, name = match[0], match[1], match[2]
        if is_literal:
            return text[1:]
        self.expanded.add(path)
        if name not in os.environ:
            self.unset.append((path, name))
        return os.environ.get(name, "")


def _explain_unset(name: str, path: KeyPath, origins: Origins) -> str:
    return (
        f"{origins.name(path)}: the environment variable {name} is not set; "
        f"set it, or write $${{{name}}} for the text itself"
    )
