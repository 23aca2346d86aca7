"""From what the job file says under `input.path` to the list of files, with every fault told before any is read."""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from bulkinfer.errors import InputError
from bulkinfer.records import SourceFile
from bulkinfer.sources.datasets import STATE, DatasetFault, list_dataset_files
from bulkinfer.sources.formats import KNOWN_ENDINGS, FormatChoice
from bulkinfer.sources.remote import RemotePath, list_remote, read_remote
from bulkinfer.sources.urls import find_file_name, find_local, hide_secrets, is_remote, parse_url

_KNOWN = f"Known endings are {KNOWN_ENDINGS}; input.format says what files of other names hold"
_BY_ENDING = FormatChoice()


def find_source_files(patterns: Sequence[str], folder: Path, choice: FormatChoice = _BY_ENDING) -> list[SourceFile]:
    """The input files in the order in which they are read; a file that is named twice is taken once.

    Each pattern is a file, a folder or a glob (`**` for any depth); `~` is a home folder; a relative one starts at
    `folder`. A folder stands for all files of a known format in it and below, sorted; as in Spark and Hive, names that
    begin with "." or "_" are left out. Text files of a folder count only where it holds no others; of a folder that is
    a Hugging Face dataset only the files that hold its rows do. A glob is sorted too, and a folder that it matches is
    read as a folder.
    Raises InputError, also for a file that a pattern matches but whose ending is not known: leaving it out without a
    word could lose documents.
    """
    files: dict[str, SourceFile] = {}
    for text in patterns:
        if is_remote(text):
            for file in _find_remote_files(text, choice):
                _check_same_user(files.setdefault(file.name, file), file)
            continue
        pattern = _parse_pattern(text, folder.absolute(), choice)
        for path in _expand(pattern):
            files.setdefault(os.path.realpath(path), _read_source_file(pattern, path))
    return list(files.values())


def takes_in(patterns: Sequence[str], folder: Path, path: Path, choice: FormatChoice = _BY_ENDING) -> bool:
    """Whether these patterns would stand for a file at `path`, too, once it is there. Raises InputError."""
    texts = filter(None, map(find_local, patterns))
    return any(_takes_in(_parse_pattern(text, folder.absolute(), choice), path.absolute()) for text in texts)


def _find_remote_files(url: str, choice: FormatChoice) -> Iterator[SourceFile]:
    found, is_named = list_remote(url)
    if not is_named:
        visible = [path for path in found if all(map(_is_visible, path.below.split("/")))]
        visible = _drop_cached(url, visible)
        for with_texts in (False, True):
            chosen = [path for path in visible if choice.is_in_folder(find_file_name(path.url), with_texts=with_texts)]
            if chosen:
                break
        found = chosen
    if not found:
        raise InputError(f"input.path {hide_secrets(url)!r}: matches no file of a known format. {_KNOWN}", "input.path")
    for path in found:
        yield _as_source_file(path, choice)


def _drop_cached(url: str, found: list[RemotePath]) -> list[RemotePath]:
    """Of folders that are datasets the files with their rows alone, as on a disk."""
    folders: dict[str, dict[str, RemotePath]] = {}
    for path in found:
        folder, _, name = path.url.rpartition("/")
        folders.setdefault(folder, {})[name] = path
    dropped: set[str] = set()
    for files in folders.values():
        if STATE in files:
            try:
                own = list_dataset_files(list(files), partial(read_remote, files[STATE].url))
            except DatasetFault as error:
                raise InputError(f"input.path {hide_secrets(url)!r}: {error}. {error.advice}", "input.path") from error
            dropped |= set() if own is None else {path.url for name, path in files.items() if name not in own}
    return [path for path in found if path.url not in dropped]


def _as_source_file(path: RemotePath, choice: FormatChoice) -> SourceFile:
    file_format = choice.find_format(find_file_name(path.url))
    if file_format is None:
        raise InputError(
            f"input.path {hide_secrets(path.url)!r}: has an ending that is not known. {_KNOWN}", "input.path"
        )
    return SourceFile(
        path=Path(find_local(path.url) or path.name),  # an export must not take its place
        name=path.name,
        size_bytes=path.size_bytes,
        mtime_ns=path.mtime_ns,
        ctime_ns=path.ctime_ns,
        inode=path.tag,
        format=file_format,
        url=path.url,
        layout=choice.describe_layout(file_format),
    )


def _check_same_user(known: SourceFile, found: SourceFile) -> None:
    """A server may show each user other files, and users are no part of a name."""
    one, other = (parse_url(file.url).user.partition(":")[0] for file in (known, found))
    if one != other:
        raise InputError(
            f"input.path {hide_secrets(found.url)!r}: is named twice, for two users. Give each user's files a job of "
            "their own",
            "input.path",
        )


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str
    choice: FormatChoice
    root: Path
    """Where the pattern starts: the job file's folder, a home folder or "/"."""
    rest: str
    is_relative: bool

    @property
    def path(self) -> Path:
        return self.root / self.rest

    def name(self, path: Path) -> str:
        return _printable(path.relative_to(self.root) if self.is_relative else path)

    def error(self, path: Path, fault: str, advice: str) -> InputError:
        return InputError(f"input.path {self.text!r}: {_printable(path)} {fault}. {advice}", "input.path")


def _parse_pattern(text: str, folder: Path, choice: FormatChoice) -> _Pattern:
    if not text.strip() or "\0" in text:
        raise InputError(f"input.path {text!r}: not a path. Give a file, a folder or a glob", "input.path")
    if text.startswith("~"):
        home, _, rest = text.partition("/")
        try:
            return _Pattern(text, choice, Path(home).expanduser(), rest, is_relative=False)
        except RuntimeError as error:
            raise InputError(
                f"input.path {text!r}: {home} is no user with a home folder. Write the whole path",
                "input.path",
            ) from error
    if text.startswith("/"):
        return _Pattern(text, choice, Path("/"), text.lstrip("/"), is_relative=False)
    return _Pattern(text, choice, folder, text, is_relative=True)


def _expand(pattern: _Pattern) -> list[Path]:
    # What exists under the name is taken as it is: a name may hold brackets without being a glob.
    if not os.path.lexists(pattern.path) and glob.has_magic(pattern.rest):
        return _expand_glob(pattern)
    if stat.S_ISDIR(_stat(pattern, pattern.path).st_mode):
        return _expand_folder(pattern)
    return [pattern.path]


def _expand_folder(pattern: _Pattern) -> list[Path]:
    known, others = _list_folder(pattern, pattern.path)
    if not known:
        raise pattern.error(
            pattern.path,
            f"is a folder with no file of a known format ({_describe_others(others)})",
            f"{_KNOWN}; names that begin with '.' or '_' are left out",
        )
    return known


def _expand_glob(pattern: _Pattern) -> list[Path]:
    takes_underscore = any(part.startswith("_") for part in Path(pattern.rest).parts)
    paths: list[Path] = []
    others: list[Path] = []
    for match in sorted(map(Path, _glob(pattern, pattern.rest)), key=lambda path: path.parts):
        if not takes_underscore and any(part.startswith("_") for part in match.parts):
            others.append(match)
        elif os.path.isdir(pattern.root / match):  # noqa: PTH112 - Path.is_dir raises where a folder above is closed
            known, unknown = _list_folder(pattern, pattern.root / match)
            paths += known
            others += unknown
        else:
            paths.append(pattern.root / match)
    if not paths:
        fault = f"matches no file of a known format ({_describe_others(others)})"
        raise pattern.error(pattern.path, fault, f"{_KNOWN}; {_describe_folder_above(pattern.path)}")
    return paths


def _glob(pattern: _Pattern, text: str) -> list[str]:
    # The glob module and not Path.glob: it leaves hidden names out, as a shell does, and reads `**` as files too.
    return glob.glob(text, root_dir=pattern.root, recursive=True)  # noqa: PTH207


def _takes_in(pattern: _Pattern, path: Path) -> bool:
    if os.path.lexists(pattern.path) or not glob.has_magic(pattern.rest):
        return _is_taken_below(pattern, pattern.path, path)
    above, _, last = pattern.rest.rpartition("/")
    matches = [pattern.root / match for match in _glob(pattern, pattern.rest)]
    parents = [pattern.root / match for match in _glob(pattern, above)] if above else []
    if all(part == "**" for part in above.split("/") if part):  # which glob does not tell of
        parents.append(pattern.root)
    if last == "**":
        matches += parents
    is_named = _is_visible(path.name) or last.startswith(path.name[:1])
    return any(_is_taken_below(pattern, match, path) for match in matches) or (
        is_named and fnmatchcase(path.name, last) and any(_is_same(parent, path.parent) for parent in parents)
    )


def _is_taken_below(pattern: _Pattern, folder: Path, path: Path) -> bool:
    """Whether the folder stands for a file of this path, too."""
    for parent in path.parents:
        if _is_same(folder, parent):
            names = path.relative_to(parent).parts
            return all(map(_is_visible, names)) and pattern.choice.is_in_folder(path.name, with_texts=False)
    return False


def _is_same(one: Path, other: Path) -> bool:
    return one == other or (os.path.isdir(one) and os.path.isdir(other) and one.samefile(other))  # noqa: PTH112


def _list_folder(pattern: _Pattern, folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of known format, sorted, and the others."""
    try:
        paths = sorted(_walk(folder), key=lambda path: path.parts)
    except OSError as error:
        raise _unreadable(pattern, Path(error.filename or folder), error) from error
    except DatasetFault as error:
        raise pattern.error(folder, str(error), error.advice) from error
    for with_texts in (False, True):
        known = [path for path in paths if _is_in_folder(pattern, path, with_texts=with_texts)]
        if known:
            break
    return known, sorted(set(paths) - set(known))


def _is_in_folder(pattern: _Pattern, path: Path, *, with_texts: bool) -> bool:
    return _is_visible(path.name) and pattern.choice.is_in_folder(path.name, with_texts=with_texts)


def _walk(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for parent, folder_names, file_names in os.walk(folder, onerror=_raise, followlinks=True):
        real = os.path.realpath(parent)
        # A link to a folder above would never end.
        folder_names[:] = [] if real in seen else filter(_is_visible, folder_names)
        if real not in seen:
            seen.add(real)
            own = list_dataset_files(file_names, Path(parent, STATE).read_bytes)
            yield from (Path(parent, name) for name in (file_names if own is None else own))


def _read_source_file(pattern: _Pattern, path: Path) -> SourceFile:
    status = _stat(pattern, path)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "of an unknown kind")
        raise pattern.error(path, f"is not a regular file but {kind}", "Write what it gives into a file first")
    file_format = pattern.choice.find_format(path.name)
    if file_format is None:
        raise pattern.error(path, "has an ending that is not known", _KNOWN)
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(pattern, path, error) from error
    return SourceFile(
        path=path,
        name=pattern.name(path),
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        format=file_format,
        layout=pattern.choice.describe_layout(file_format),
    )


_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def _stat(pattern: _Pattern, path: Path) -> os.stat_result:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        fault = "is a symbolic link to something that does not exist" if os.path.islink(path) else "does not exist"  # noqa: PTH114
        raise pattern.error(path, fault, f"Correct the path; {_describe_folder_above(path)}") from error
    except OSError as error:
        raise _unreadable(pattern, path, error) from error


def _unreadable(pattern: _Pattern, path: Path, error: OSError) -> InputError:
    return pattern.error(path, f"cannot be read ({error.strerror})", "Check its permissions and those of its folders")


def _raise(error: OSError) -> None:
    raise error


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "_"))


def _describe_folder_above(path: Path) -> str:
    above = next((parent for parent in path.parents if os.path.isdir(parent)), Path("/"))  # noqa: PTH112 - never raises
    return (
        f"a relative path starts at the job file's folder, and {_printable(above)} is the last folder of it that exists"
    )


def _describe_others(paths: Sequence[Path]) -> str:
    endings = [ending or "no ending" for ending, _ in Counter(path.suffix for path in paths).most_common(3)]
    return f"other files: {len(paths)}, with {', '.join(endings)}" if paths else "no file at all"


def _printable(path: Path) -> str:
    """The path as text that can be printed and stored: a name that is not UTF-8 gets its odd bytes written as \\xNN."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
