"""The report in a real browser: as wide as its window, light and dark, to be read, and alone in the world.

The screenshots lie in out/browser afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Dialog, Page

from bulkinfer.report import write_report
from bulkinfer.store import Reader
from tests.conftest import ROOT
from tests.unit.report_support import first_commits, make_known_database, second_commits, write_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

Scheme = Literal["light", "dark"]
HOSTILE = "<img src=x onerror=alert(1)>" + "W" * 400 + " <b>bold</b> $x$ \u202e{{ 1 }}"

# Every text that is to be seen, its colour, the colour behind it, and its size in pixels.
READ_TEXTS = """() => {
    const found = [];
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (!color.startsWith('rgba(') || !color.endsWith(', 0)')) return color;
        }
        return 'rgb(255, 255, 255)';
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        const text = walker.currentNode.data.trim();
        const box = element.getBoundingClientRect();
        if (!text || !box.width || !box.height) continue;
        const style = getComputedStyle(element);
        const drawn = element.closest('svg');
        const zoom = drawn ? drawn.getBoundingClientRect().width / drawn.viewBox.baseVal.width : 1;
        found.push({text, color: drawn ? style.fill : style.color, behind: behind(element),
            size: parseFloat(style.fontSize) * zoom});
    }
    return found;
}"""
READ_DRAWINGS = """() => [...document.querySelectorAll('svg')].map((drawing) => {
    const box = drawing.getBoundingClientRect();
    const parts = [...drawing.querySelectorAll('path, use')].filter((part) => part.getBoundingClientRect().width > 0);
    return {label: drawing.getAttribute('aria-label'), left: box.left, right: box.right, width: box.width,
        height: box.height, parts: parts.length};
})"""
READ_SIZES = "() => [document.documentElement.scrollWidth, window.innerWidth]"


@pytest.fixture(scope="module", params=["known", "hostile"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a report: of the database of which all is known, and of one with the names of an enemy."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "known":
        make_known_database(folder / "out.duckdb")
    else:
        write_run(folder / "out.duckdb", first_commits(), name=HOSTILE)
        write_run(folder / "out.duckdb", second_commits(), name=HOSTILE, ends=False)
    with Reader.open(folder / "out.duckdb") as reader:
        write_report(reader, None, folder / f"{request.param}.html")
    return folder / f"{request.param}.html"


@contextmanager
def opened(browser: Browser, file: Path, width: int, scheme: Scheme) -> Iterator[Page]:
    """The file in a window, without a network. At the end: it has asked for nothing but itself, and said no error."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    requests: list[str] = []
    said: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        said.append(dialog.message)
        dialog.dismiss()

    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", dismiss)
    try:
        page.goto(file.as_uri(), wait_until="networkidle")
        yield page
        assert requests == [file.as_uri()]
        assert said == []
    finally:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_its_window_and_can_be_read(browser: Browser, report: Path, width: int, scheme: Scheme) -> None:
    with opened(browser, report, width, scheme) as page:
        save(page, f"{report.stem}-{width}-{scheme}")
        check_width(page)
        check_drawings(page, width)
        check_texts(page, is_dark=scheme == "dark")
        for numbers in page.locator("summary").all():
            numbers.click()
        assert page.locator("details[open] table").count() == 12
        check_width(page)
        check_texts(page, is_dark=scheme == "dark")


def test_it_prints_light_without_overflow(browser: Browser, report: Path) -> None:
    with opened(browser, report, 800, "dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        check_width(page)
        check_texts(page, is_dark=False)
        save(page, f"{report.stem}-print")


def test_every_chart_is_read_aloud(browser: Browser, report: Path) -> None:
    """As a screen reader finds them: by their role and their words."""
    with opened(browser, report, 1400, "light") as page:
        pictures = page.get_by_role("img").all()
        assert len(pictures) == 12
        assert page.get_by_role("img", name="Failures by code. 2 truncated, 1 prompt_too_long.").count() == 1
        assert page.get_by_role("heading", level=1).count() == 1
        assert page.get_by_role("table").count() >= 4


def test_names_are_no_markup(browser: Browser, report: Path) -> None:
    with opened(browser, report, 1400, "light") as page:
        assert page.locator("img, script, b, a, iframe").count() == 0
        if report.stem == "hostile":
            assert page.locator("h1").inner_text().startswith("<img src=x onerror=alert(1)>WWW")


def check_width(page: Page) -> None:
    """Nobody has to scroll sideways, but within a table."""
    content, window = page.evaluate(READ_SIZES)
    assert content <= window


def check_drawings(page: Page, width: int) -> None:
    """Each is there, of a size to be seen, within the window, and has lines in it."""
    drawings: list[dict[str, Any]] = page.evaluate(READ_DRAWINGS)
    assert len(drawings) == 12
    for drawing in drawings:
        assert drawing["width"] >= min(width - 40, 350), drawing
        assert drawing["height"] >= 180, drawing
        assert 0 <= drawing["left"] < drawing["right"] <= width, drawing
        assert drawing["parts"] >= 3, drawing


def check_texts(page: Page, *, is_dark: bool) -> None:
    """WCAG 2.1, 1.4.3: 4.5 to 1. And letters are not tiny."""
    texts: list[dict[str, Any]] = page.evaluate(READ_TEXTS)
    assert len(texts) > 150
    for text in texts:
        front, back = read_color(text["color"]), read_color(text["behind"])
        assert (measure_light(back) < 0.1) is is_dark, text
        bright, dark = sorted((measure_light(front), measure_light(back)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, text
        assert text["size"] >= 6.5, text


def read_color(text: str) -> list[float]:
    """`rgb(1, 2, 3)` as shares of full light."""
    assert text.startswith("rgb("), text
    return [int(part) / 255 for part in text.removeprefix("rgb(").removesuffix(")").split(",")]


def measure_light(color: list[float]) -> float:
    """The relative luminance of WCAG 2.1."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def save(page: Page, name: str) -> None:
    """For people to look at."""
    folder = ROOT / "out" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=True)
