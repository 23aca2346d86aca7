"""Airflow lives in an environment of its own, which only `make test-airflow` builds."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests out unless `-m` names them. That they were left out is shown; without Airflow they fail."""
    if "airflow" in str(config.option.markexpr):
        return
    left_out = [item for item in items if item.get_closest_marker("airflow")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
