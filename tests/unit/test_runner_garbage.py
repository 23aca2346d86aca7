"""The search for reference cycles while a run lasts."""

import gc

import pytest

from bulkinfer.runner.garbage import collect_seldom


def test_the_search_is_rare_inside_and_as_before_outside() -> None:
    before = gc.get_threshold()
    with collect_seldom():
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_what_raises_puts_it_back_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="inside"), collect_seldom():
        raise ValueError("inside")
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
