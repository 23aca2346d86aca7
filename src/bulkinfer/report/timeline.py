"""How a run stood over time, as series for charts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bulkinfer.charts import Mark, Span
from bulkinfer.report.subject import Subject
from bulkinfer.store import Moment

LEAST_STRETCH_S = 1.0
"""Rates over less than this jump about: two commits may be 50 ms apart."""
MAX_MARKS = 8
MAX_SPANS = 200


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happened between two moments."""

    begin_s: float
    end_s: float
    before: Moment
    after: Moment

    def rate(self, count: Callable[[Moment], int | None]) -> float | None:
        """How much of it came in a second; None where the moments do not tell."""
        now, then = count(self.after), count(self.before)
        return None if now is None or then is None else max(0, now - then) / (self.end_s - self.begin_s)

    def share(self, part: Callable[[Moment], int | None], whole: Callable[[Moment], int | None]) -> float | None:
        """The part of what came in this stretch; None where nothing came."""
        some, all_ = self.rate(part), self.rate(whole)
        return some / all_ if some is not None and all_ else None


def split(moments: Sequence[Moment]) -> list[Stretch]:
    """The stretches between the moments, from the start on; short ones are one with the next."""
    if not moments or moments[-1].elapsed_s <= 0:
        return []
    least_s = min(LEAST_STRETCH_S, moments[-1].elapsed_s / 4)
    start = Moment(0.0, 0, 0, 0, 0, cached_tokens=0, read=0)
    kept = [start]
    for moment in moments:
        if moment.elapsed_s - kept[-1].elapsed_s >= least_s:
            kept.append(moment)
    if kept[-1] is not moments[-1]:  # what came last is too short to stand alone
        kept[max(1, len(kept) - 1) :] = [moments[-1]]
    return [Stretch(before.elapsed_s, after.elapsed_s, before, after) for before, after in pairwise(kept)]


def steps_of(
    stretches: Sequence[Stretch], value: Callable[[Stretch], float | None]
) -> list[tuple[float, float | None]]:
    """A value that holds from the beginning of each stretch to its end."""
    points = [(stretch.begin_s, value(stretch)) for stretch in stretches]
    return [*points, (stretches[-1].end_s, points[-1][1])] if stretches else []


def line_of(moments: Sequence[Moment], value: Callable[[Moment], float | None]) -> list[tuple[float, float | None]]:
    """A value at each moment."""
    return [(moment.elapsed_s, value(moment)) for moment in moments]


def find_restarts(moments: Sequence[Moment]) -> list[Mark]:
    """Where engines were started again; none where there would be too many lines to see anything else."""
    marks = []
    num_before = 0
    for moment in moments:
        num_restarts = (moment.restarts or 0) - num_before
        if num_restarts > 0:
            marks.append(Mark("restart" if num_restarts == 1 else f"{num_restarts} restarts", moment.elapsed_s))
            num_before += num_restarts
    return marks if len(marks) <= MAX_MARKS else []


def find_spans(subject: Subject) -> list[Span]:
    """The stalls."""
    return [Span("stall", stall.begin_s, stall.end_s) for stall in subject.stalls[:MAX_SPANS]]
