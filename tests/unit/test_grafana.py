"""The dashboard and the alert rules that we ship: they parse, and ask for metrics and labels that there are."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from bulkinfer.metrics.catalogue import CATALOGUE, LABELS, Kind
from bulkinfer.records import RunStatus
from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "grafana"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
RULE_TESTS = Path(__file__).parent / "alerts_test.yaml"
OF_THE_TARGET = ("instance",)
"""What Prometheus adds by itself."""


def list_exposed() -> dict[str, frozenset[str]]:
    """Each name that a scrape has, with its labels."""
    exposed = {}
    for metric in CATALOGUE:
        labels = frozenset((*LABELS, *metric.labels))
        names = [metric.name]
        if metric.kind is Kind.HISTOGRAM:
            names = [f"{metric.name}_count", f"{metric.name}_sum"]
            exposed[f"{metric.name}_bucket"] = labels | {"le"}
        exposed |= dict.fromkeys(names, labels)
    return exposed


EXPOSED = list_exposed()


def list_rules() -> list[dict[str, Any]]:
    """All rules of all groups."""
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def iter_expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression without Grafana's variables."""
    for rule in list_rules():
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


EXPRESSIONS = list(iter_expressions())


def find_selectors(text: str) -> list[promql_parser.VectorSelector]:
    """The metrics that an expression asks for."""
    found: list[promql_parser.VectorSelector] = []

    def note(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        return True

    promql_parser.walk(promql_parser.parse(text), note)
    return found


@pytest.mark.parametrize(
    ("where", "text"), EXPRESSIONS, ids=[f"{n}-{where}" for n, (where, _) in enumerate(EXPRESSIONS)]
)
def test_every_expression_asks_for_metrics_and_labels_that_there_are(where: str, text: str) -> None:
    selectors = find_selectors(text)
    assert selectors, where
    known = frozenset[str]()
    for selector in selectors:
        assert selector.name in EXPOSED, f"{where}: {selector.name}"
        known |= EXPOSED[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in EXPOSED[selector.name], f"{where}: {matcher.name}"
            if matcher.name == "status":
                assert matcher.value in {*RunStatus}
    for names in re.findall(r"(?:by|on|ignoring|without) \(([^)]*)\)", text):
        assert {name.strip() for name in names.split(",")} <= known, where


def test_legends_and_messages_name_labels_that_there_are() -> None:
    names = frozenset[str]().union(*EXPOSED.values())
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= names, panel["title"]
    for rule in list_rules():
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= names


def test_the_dashboard_shows_what_an_operator_looks_for_and_fits_its_grid() -> None:
    asked = {selector.name for _, text in EXPRESSIONS for selector in find_selectors(text)}
    for metric in CATALOGUE:
        used = bool({metric.name, f"{metric.name}_bucket"} & asked)
        is_left_out = metric.base in {"documents_read", "documents_skipped", "shards", "output_tokens"}
        assert used != is_left_out, f"{metric.name} is shown nowhere"
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(identities) == len(set(identities))


def test_every_alert_says_what_happened_and_how_grave_it_is() -> None:
    for rule in list_rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
    names = [rule["alert"] for rule in list_rules()]
    assert len(names) == len(set(names)) > 8
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(Bulkinfer\w+)` \| \S", page, re.MULTILINE) == names, "what to do with each"


def test_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    """By Prometheus' own tool, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (make test-alerts)")
    shutil.copy(FOLDER / "alerts.yaml", tmp_path)
    shutil.copy(RULE_TESTS, tmp_path)
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", RULE_TESTS.name]):
        found = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr
