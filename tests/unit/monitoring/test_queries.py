"""Every metric in a rule, a dashboard or the documents is one that there is, with these labels."""

from __future__ import annotations

import importlib.util
import json
import re
from types import ModuleType

import pytest
import yaml
from promql import (
    ROOT,
    SCRAPED,
    Known,
    known_metrics,
    labels_of,
    panel_queries,
    rules,
    variable_queries,
)

LEVELS = {
    "target": SCRAPED | {"pid", "command"},
    "instance": SCRAPED,
    "command": {"job", "command"},
}
LOOKBACK_MINUTES = 5  # Prometheus takes what is older for gone, unless it is told otherwise
DASHBOARDS = ("memsampd-machines.json", "memsampd-process.json")
DOCUMENTS = ("metrics.md", "prometheus.md", "traffic.md")


@pytest.fixture(scope="module")
def known() -> Known:
    return known_metrics()


@pytest.mark.parametrize("rule", list(rules("memsampd.rules.yml")), ids=lambda rule: rule["record"])
def test_recorded_series_have_the_labels_of_their_level(rule: dict[str, str], known: Known) -> None:
    level = LEVELS[rule["record"].partition(":")[0]]
    more = known[rule["record"]] - level
    assert level <= known[rule["record"]]
    assert more <= {"size_bytes", "level"}


def test_a_fleet_records_of_commands_what_its_nodes_do() -> None:
    config = yaml.safe_load((ROOT / "prometheus/fleet.yml").read_text())
    of_node = config["global"]["external_labels"].keys()
    known = {name: labels | of_node for name, labels in known_metrics().items()}
    (kept,) = config["remote_write"][0]["write_relabel_configs"]
    own: set[str] = set()
    for rule in rules("memsampd-fleet.rules.yml"):
        labels = labels_of(rule["expr"], known)
        assert rule["record"].startswith("fleet:")
        assert labels - {"size_bytes"} == LEVELS["command"]
        used = set(re.findall(r"\w+:memsampd_\w+:\w+", rule["expr"]))
        assert all(re.fullmatch(kept["regex"], name) for name in used - own)  # it is sent there
        known[rule["record"]] = labels
        own.add(rule["record"])


@pytest.mark.parametrize("rule", list(rules("memsampd.alerts.yml")), ids=lambda rule: rule["alert"])
def test_alerts_use_what_there_is(rule: dict[str, object], known: Known) -> None:
    labels = labels_of(str(rule["expr"]), known)
    named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert named <= labels


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    """promtool runs them; here it is seen to that none lacks."""
    cases = [
        (case["alertname"], bool(case.get("exp_alerts")))
        for path in sorted((ROOT / "prometheus").glob("memsampd*.test.yml"))
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
    ]
    names = {str(rule["alert"]) for rule in rules("memsampd.alerts.yml")}
    for fires in (True, False):
        assert {name for name, found in cases if found is fires} == names


def test_what_is_recorded_does_not_grow_old_before_it_is_recorded_anew() -> None:
    """Or alerts and panels would find nothing most of the time."""
    groups = yaml.safe_load((ROOT / "prometheus/memsampd.rules.yml").read_text())["groups"]
    seldom = [int(group["interval"].removesuffix("m")) for group in groups if "interval" in group]
    assert seldom
    assert max(seldom) < LOOKBACK_MINUTES
    # promtool evaluates all groups at the interval of the test.
    test = yaml.safe_load((ROOT / "prometheus/memsampd-days.test.yml").read_text())
    assert test["evaluation_interval"] == f"{max(seldom)}m"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_use_what_there_is(name: str, known: Known) -> None:
    queries = list(panel_queries(name))
    assert queries
    for _, expression in queries:
        labels_of(expression, known)
    for _, selector, label in variable_queries(name):
        assert label in labels_of(selector, known)


def test_figures_of_all_machines_are_of_now() -> None:
    """Grafana shows the last value of a range: without a sample of now that is an old one."""
    board = json.loads((ROOT / "grafana/memsampd-machines.json").read_text())
    figures = [panel for panel in board["panels"] if panel["type"] == "stat"]
    assert figures
    for panel in figures:
        assert all(target["expr"].endswith(" or vector(0)") for target in panel["targets"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_are_what_the_script_makes(name: str) -> None:
    assert (ROOT / "grafana" / name).read_text() == generator().dashboards()[name], (
        "run python grafana/generate.py"
    )


def generator() -> ModuleType:
    path = ROOT / "grafana" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", DOCUMENTS)
def test_queries_of_the_documents_use_what_there_is(name: str, known: Known) -> None:
    for block in re.findall(r"```promql\n(.*?)```", (ROOT / "docs" / name).read_text(), re.S):
        labels_of(block, known)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("memsampd_bandwidth", "no metric memsampd_bandwidth"),
        ('memsampd_target_up{level="L3"}', "no label"),
        ("sum by (phase) (memsampd_misses_total)", "no label"),
        ("memsampd_misses_total / memsampd_accesses_total", "on one side only"),
        ("memsampd_misses_total / on (phase) memsampd_accesses_total", "no label"),
        ("memsampd_target_up / on (pid) memsampd_accesses_total", "of one machine only"),
    ],
)
def test_what_there_is_not_is_found(expression: str, complaint: str, known: Known) -> None:
    with pytest.raises(ValueError, match=complaint):
        labels_of(expression, known)


def test_labels_that_a_scrape_adds_do_no_harm() -> None:
    known = known_metrics(frozenset({"namespace", "pod"}))  # which reads the recording rules
    for rule in rules("memsampd.alerts.yml"):
        labels_of(str(rule["expr"]), known)
    for name in DASHBOARDS:
        for _, expression in panel_queries(name):
            labels_of(expression, known)
