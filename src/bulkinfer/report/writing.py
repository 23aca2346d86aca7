"""The file of a report, as its ending says."""

from collections.abc import Callable
from pathlib import Path

from bulkinfer.charts import LIGHT, draw_page_png
from bulkinfer.errors import JobError
from bulkinfer.report.measures import UNKNOWN
from bulkinfer.report.page import compared_of, list_about, list_notices, measures_of, plain, render_page
from bulkinfer.report.pictures import draw_pictures
from bulkinfer.report.subject import AnyReader, Subject, read_subject
from bulkinfer.store import RunIdentity, replacing

_ABOUT = ("status", "run", "started", "host", "bulkinfer")
_HEADLINES = (
    "documents answered",
    "documents failed",
    "duration",
    "documents/s over the whole run",
    "prompt tokens/s while generating",
    "output tokens/s while generating",
    "prompt tokens from the prefix cache",
    "memory of the runner, at most",
    "memory of the engine, at most",
)


def check_ending(file: Path) -> None:
    """Raise JobError for a file whose ending names no format of a report."""
    _choose_renderer(file)


def write_report(reader: AnyReader, name: str | None, file: Path, run_id: str | None = None) -> RunIdentity:
    """Write the report of a run as HTML or PNG; returns which run it is about.

    `name`: of the job; None: any. `run_id`: of the run, or its beginning; None: the newest with outcomes. Raises
    JobError: unknown ending, no such run, a run that committed nothing, a file that cannot be written; StoreError when
    the database cannot be read.
    """
    render = _choose_renderer(file)
    subject = read_subject(reader, name, run_id)
    content = render(subject)
    with replacing(file) as stream:
        stream.write(content)
    return subject.details.run


def _choose_renderer(file: Path) -> Callable[[Subject], bytes]:
    match file.suffix.lower():
        case ".html" | ".htm":
            return lambda subject: render_page(subject).encode()
        case ".png":
            return _render_png
    raise JobError(f"{file}: the ending says the format, and must be .html or .png")


def _render_png(subject: Subject) -> bytes:
    """All charts on one page, light, below a few lines of numbers."""
    about = dict(list_about(subject.details.run, subject))
    measures = {measure.label: measure for measure in measures_of(subject)}
    lines = [
        ", ".join(f"{name} {about[name]}" for name in _ABOUT if name in about),
        ", ".join(f"{name}: {measures[name].describe()}" for name in _HEADLINES if measures[name].value is not None),
        *list_notices(subject),
    ]
    ratios = [line for line in compared_of(subject) if line.label in _HEADLINES and line.ratio != UNKNOWN]
    if subject.previous is not None:
        told = ", ".join(f"{line.label} {line.ratio}" for line in ratios)
        lines.append(f"against the run before, {subject.previous.run.run_id}: {told}")
    title = f"{plain(subject.details.run.name)}: report of a run"
    return draw_page_png([picture.chart for picture in draw_pictures(subject)], LIGHT, title=title, lines=lines)
