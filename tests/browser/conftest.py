"""Chromium is a program of the system, not of `.venv`, which only `make test-browser` installs."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests out unless `-m` names them. That they were left out is shown; without Chromium they fail."""
    if "browser" in str(config.option.markexpr):
        return
    left_out = [item for item in items if item.get_closest_marker("browser")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="module")  # others look at what this process has started
def browser() -> Iterator[Browser]:
    """The system's Chromium without a window."""
    assert CHROMIUM is not None, "there is no chromium on the path: `make test-browser` installs it"
    with sync_playwright() as playwright:
        # Its sandbox does not start as root, as in a container; all it is shown is our own page.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()
