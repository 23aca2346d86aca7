"""The HTML page: one file that asks nothing of any network, light or dark as its reader likes it, and prints.

Everything that came from a user is escaped by the template; what it may load is forbidden by the page's own policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bulkinfer import __version__
from bulkinfer.charts import DARK, LIGHT, Unit, css_variables, draw_adaptive_svg, format_value
from bulkinfer.records import RunStatus
from bulkinfer.report.measures import UNKNOWN, Compared, Measure, compare, duration_of, measure_run, pick
from bulkinfer.report.pictures import draw_pictures
from bulkinfer.report.subject import Subject
from bulkinfer.store import LongSilence, RunIdentity

_MAX_CHARS = 300


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the engine's, and why it is so."""

    name: str
    value: str
    reason: str


def render_page(subject: Subject, *, now: datetime | None = None) -> str:
    """The report as HTML."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": plain, "when": _tell_time, "seconds": _tell_seconds}
    template = environment.from_string((files(__package__) / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        subject=subject,
        run=subject.details.run,
        about=list_about(subject.details.run, subject),
        measures=measures_of(subject),
        latencies=list_latencies(subject),
        compared=compared_of(subject),
        notices=list_notices(subject),
        stalls=tell_stalls(subject.stalls),
        settings=list_settings(subject.details.settings),
        asked=list_asked(subject.details.spec),
        pictures=[(picture, Markup(draw_adaptive_svg(picture.chart))) for picture in draw_pictures(subject)],  # noqa: S704  # our own drawing
        light=css_variables(LIGHT),
        dark=css_variables(DARK),
        made_at=now or datetime.now(UTC),
        version=__version__,
    )


def measures_of(subject: Subject) -> list[Measure]:
    """The numbers of the run; until now, if it lives."""
    elapsed_s = subject.live.get("elapsed_s")
    return measure_run(subject.details, None if elapsed_s is None else float(elapsed_s))


def compared_of(subject: Subject) -> list[Compared]:
    """The same beside those of the run before; [] where there is none."""
    return [] if subject.previous is None else compare(measures_of(subject), measure_run(subject.previous))


def list_notices(subject: Subject) -> list[str]:
    """What the reader should know before the numbers."""
    run, notices = subject.details.run, []
    if run.status == RunStatus.RUNNING:
        notices.append("The run goes on: this is how it stood when the report was made.")
    if run.status == "killed":
        notices.append(
            "The run ended without saying so: it was killed, or its machine stopped. What it had committed is here."
        )
    if subject.newest_without is not None:
        newest = subject.newest_without
        notices.append(
            f"The newest run, {newest.run_id} of {_tell_time(newest.started_at)} ({newest.status}), has committed no "
            "outcome: this is the report of the newest that has."
        )
    if not subject.details.has_samples:
        notices.append(
            "This run recorded no samples over time, as runs of older versions: memory, queue, caches and stalls are "
            "not known."
        )
    return notices


def tell_stalls(stalls: Sequence[LongSilence]) -> list[tuple[str, str, str]]:
    """Begin, end and length of each."""
    return [
        (
            format_value(stall.begin_s, Unit.SECONDS),
            format_value(stall.end_s, Unit.SECONDS),
            format_value(stall.length_s, Unit.SECONDS),
        )
        for stall in stalls
    ]


def list_latencies(subject: Subject) -> list[tuple[str, list[str]]]:
    """What a document waited for, and its percentiles."""
    latency = subject.details.totals.latency
    found = (
        ("it runs in the engine", latency.queue),
        *([("its first token", latency.first_token)] if subject.details.totals.writes_answers else []),
        ("its whole answer", latency.total),
    )
    return [
        (name, [UNKNOWN if value is None else _tell_seconds(value) for value in asdict(percentiles).values()])
        for name, percentiles in found
    ]


def list_settings(settings: Mapping[str, Any]) -> list[Setting]:
    """The engine's settings with the reasons for those that were chosen for it."""
    reasons = settings.get("reasons")
    reasons = reasons if isinstance(reasons, Mapping) else {}
    return [
        Setting(plain(name), plain(value), plain(reasons.get(name, "")))
        for name, value in settings.items()
        if name != "reasons"
    ]


_NAMES_ASKED = {("model", "path"), ("model", "revision")}
"""All other text of a job may be a prompt: a chat template is one."""


def list_asked(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What of the job made the task: the model and the sampling. Numbers and names alone: prompts are private."""
    found: list[tuple[str, str]] = []
    for section in ("model", "sampling"):
        values = spec.get(section)
        for name, value in (values if isinstance(values, Mapping) else {}).items():
            if isinstance(value, bool | int | float) or (section, name) in _NAMES_ASKED:
                found.append((f"{section}.{plain(name)}", plain(value)))
    return found


def list_about(run: RunIdentity, subject: Subject) -> list[tuple[str, str]]:
    """Which run this is, and where and when it ran."""
    duration_s = duration_of(subject.details)
    error = (run.summary or {}).get("error")
    lines = [
        ("status", run.status if run.exit_code is None else f"{run.status} (exit code {run.exit_code})"),
        ("error", error or ""),
        ("run", str(run.run_id)),
        ("started", _tell_time(run.started_at)),
        ("ended", "" if run.ended_at is None else _tell_time(run.ended_at)),
        ("lasted", "" if duration_s is None else format_value(duration_s, Unit.SECONDS)),
        ("input", _tell_input(subject)),
        ("host", f"{run.host}, process {run.pid}"),
        ("job file", run.job_path),
        ("task", str(run.task_fingerprint)),
        ("bulkinfer", run.version),
    ]
    return [(name, plain(value)) for name, value in lines if value]


def _tell_input(subject: Subject) -> str:
    names = ("read", "duplicates", "already_done")
    read, equal, done = (pick(subject.details.run.summary, "documents", name) for name in names)
    if read is not None and equal is not None and done is not None:
        return f"{read:,.0f} rows, {equal:,.0f} equal to another, {done:,.0f} done before"
    num_read = subject.details.moments[-1].read if subject.details.moments else None
    return "" if num_read is None else f"{num_read:,} rows read"


def plain(value: object) -> str:
    """Any value as one line of text that cannot change the direction or the colour of what follows."""
    text = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in str(value))
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


def _tell_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _tell_seconds(seconds: float) -> str:
    return format_value(seconds, Unit.SECONDS)
