"""Options of a sweep: what is understood, and what is refused with what words."""

from dataclasses import replace

import pytest

from bulkinfer.errors import JobError
from bulkinfer.sweep.options import (
    Arrivals,
    Kind,
    SweepOptions,
    check_options,
    parse_arrivals,
    parse_counts,
    parse_headroom,
    parse_kinds,
    parse_max_tokens,
    parse_mix,
    parse_share,
)


def test_counts_are_ordered_and_different() -> None:
    assert parse_counts("--concurrency", "8, 1,4,4") == (1, 4, 8)


@pytest.mark.parametrize("text", ["0", "", "1,", "-1", "1.5", "many", "65537", "1;2", "٣"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="--concurrency: expected whole numbers from 1 to 65,536"):
        parse_counts("--concurrency", text)


@pytest.mark.parametrize("text", ["short:0.7,long:0.3", "short:70%,long:30%", "long:0.3, short:0.7"])
def test_a_mix_is_shares_of_kinds(text: str) -> None:
    assert parse_mix(text) == pytest.approx({Kind.SHORT: 0.7, Kind.LONG: 0.3})


def test_a_mix_may_be_rounded() -> None:
    assert sum(parse_mix("short:0.667,long:0.334").values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("short:0.7,long:0.2", "--mix: expected shares that sum to 1, found 0.9"),
        ("short:0.7", "--mix: expected shares that sum to 1, found 0.7"),
        ("chat:1", "--mix: unknown kind 'chat'; expected short or long"),
        ("short:0.5,short:0.5", "--mix: short is given twice"),
        ("short", "--mix: expected kinds and values such as short:0.7"),
        ("short:-1,long:2", "--mix short: expected a share from 0 to 1"),
        ("short:nan,long:1", "--mix short: expected a share from 0 to 1"),
    ],
)
def test_a_mix_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        parse_mix(text)


def test_arrivals_are_closed_or_at_rates() -> None:
    assert parse_arrivals("closed") == Arrivals()
    assert parse_arrivals("poisson:2,0.5") == Arrivals((0.5, 2.0))
    assert str(parse_arrivals("poisson:2,0.5")) == "poisson:0.5,2"


@pytest.mark.parametrize(
    "text", ["poisson", "poisson:", "poisson:0", "poisson:1e9", "poisson:1001", "open", "poisson:-1"]
)
def test_arrivals_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="--arrivals: expected closed or poisson:RATE"):
        parse_arrivals(text)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("100 %", 1.0), ("0", 0.0), ("1", 1.0)])
def test_a_share_has_two_forms(text: str, share: float) -> None:
    assert parse_share("--cancel", text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["101%", "1.5", "-5%", "many", ""])
def test_a_share_above_one_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="--cancel: expected a share from 0 to 1"):
        parse_share("--cancel", text)


def test_a_headroom_leaves_something() -> None:
    assert parse_headroom("20%") == pytest.approx(0.2)
    with pytest.raises(JobError, match="--headroom: expected less than 100 %"):
        parse_headroom("100%")


def test_kinds_and_lengths() -> None:
    assert parse_kinds("--low", "long") == {Kind.LONG}
    assert parse_max_tokens("short:16,long:64") == {Kind.SHORT: 16, Kind.LONG: 64}
    with pytest.raises(JobError, match="--max-tokens short: expected whole numbers"):
        parse_max_tokens("short:0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_s": 0.0}, "--duration: expected more than 0 seconds"),
        ({"is_rejecting": True, "queue_size": 0}, "--queue: expected 1 or more with --reject and --arrivals closed"),
        ({"per_user": 2}, "--per-user: says nothing with --arrivals closed"),
        ({"per_user": 2, "arrivals": Arrivals((1.0,))}, "--per-user: expected --users as well"),
        ({"low": frozenset(Kind)}, "--low: expected at least one kind"),
        ({"concurrency": tuple(range(1, 202))}, "expected at most 200 points, found 201"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        check_options(replace(SweepOptions(), **changes))  # type: ignore[arg-type]  # a table of changes


def test_the_defaults_go_together() -> None:
    check_options(SweepOptions())
    check_options(SweepOptions(arrivals=Arrivals((1.0,)), is_rejecting=True, queue_size=0))
