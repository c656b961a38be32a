"""Reads PromQL: which labels an expression's series have, and whether its metrics have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, TypeAlias

import promql_parser as promql
import yaml

from memsampd.exporters.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
SCRAPED = frozenset({"job", "instance"})  # labels that Prometheus adds
BY_PROMETHEUS = {
    "up": SCRAPED,
    "ALERTS": SCRAPED | {"alertname", "alertstate", "severity", "pid", "command"},
}
_GRAFANA = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}

Known: TypeAlias = Mapping[str, frozenset[str]]


def known_metrics(added: Set[str] = frozenset()) -> dict[str, frozenset[str]]:
    """Labels of every metric: of the catalogue, of Prometheus's own, of the recording rules.

    Args:
        added: labels that the scrape adds to all, as Kubernetes' service monitors do.
    """
    known = {metric.name: SCRAPED | set(metric.all_labels) | added for metric in CATALOGUE}
    known |= {name: frozenset(labels | added) for name, labels in BY_PROMETHEUS.items()}
    for rule in rules("memsampd.rules.yml"):
        known[rule["record"]] = labels_of(rule["expr"], known)
    return known


def rules(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rules of a file of prometheus/ in order."""
    content = yaml.safe_load((ROOT / "prometheus" / name).read_text())
    for group in content["groups"]:
        yield from group["rules"]


def panel_queries(name: str) -> Iterator[tuple[str, str]]:
    """Yield title and expression of every query of a dashboard."""
    for panel in json.loads((ROOT / "grafana" / name).read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def variable_queries(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the selector and the label of every variable of a dashboard."""
    for variable in json.loads((ROOT / "grafana" / name).read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert match is not None, variable["query"]
            yield variable["name"], match[1], match[2]


def filled_in(expression: str, values: Mapping[str, str]) -> str:
    """Replace the variables of a dashboard."""
    for name, value in (_GRAFANA | dict(values)).items():
        expression = expression.replace(name, value)
    return expression


def labels_of(expression: str, known: Known) -> frozenset[str]:
    """Return the labels that the series of an expression have.

    Raises:
        ValueError: it names a metric that there is not, or a label that its series do not have; or
            it joins series on all their labels which do not have the same, or on a process id that
            may be of another machine.
    """
    return _labels(promql.parse(filled_in(expression, {})), known)


def _labels(node: Any, known: Known) -> frozenset[str]:
    match node:
        case promql.VectorSelector():
            return _selected(node, known)
        case promql.MatrixSelector():
            return _labels(node.vector_selector, known)
        case promql.NumberLiteral() | promql.StringLiteral():
            return frozenset()
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return _labels(node.expr, known)
        case promql.Call():
            return _called(node, known)
        case promql.AggregateExpr():
            return _aggregated(node, known)
        case promql.BinaryExpr():
            return _joined(node, known)
    raise ValueError(f"{type(node).__name__} is not understood")


def _selected(node: Any, known: Known) -> frozenset[str]:
    if node.name not in known:
        raise ValueError(f"there is no metric {node.name}")
    named = {matcher.name for matcher in node.matchers.matchers}
    _require(named, known[node.name], node)
    return known[node.name]


def _called(node: Any, known: Known) -> frozenset[str]:
    inner: frozenset[str] = frozenset().union(*(_labels(arg, known) for arg in node.args))
    match node.func.name:
        case "label_replace":
            _require({node.args[3].val}, inner, node)
            return inner | {node.args[1].val}
        case "absent":
            return frozenset(m.name for m in node.args[0].matchers.matchers)
    return inner


def _aggregated(node: Any, known: Known) -> frozenset[str]:
    inner = _labels(node.expr, known)
    if str(node.op) in ("topk", "bottomk"):
        return inner
    if node.modifier is None:
        return frozenset()
    named = frozenset(node.modifier.labels)
    _require(named, inner, node)
    return named if node.modifier.type == promql.AggModifierType.By else inner - named


def _joined(node: Any, known: Known) -> frozenset[str]:
    left, right = _labels(node.lhs, known), _labels(node.rhs, known)
    scalar = (promql.NumberLiteral, promql.StringLiteral)
    if isinstance(node.lhs, scalar) or isinstance(node.rhs, scalar):
        return left | right
    matching = node.modifier.matching if node.modifier is not None else None
    if str(node.op) == "or":
        return left | right
    if matching is None:
        if left != right:
            raise ValueError(f"{sorted(left ^ right)} are on one side only: {node.prettify()}")
        return left
    if matching.type != promql.LabelModifierType.Include:
        return left
    on = frozenset(matching.labels)
    if "pid" in on and "instance" not in on:
        raise ValueError(f"pid is of one machine only: {node.prettify()}")
    _require(on, left, node)
    _require(on, right, node)
    if str(node.op) in ("and", "unless") or str(node.modifier.card).endswith("ManyToOne"):
        return left
    is_many = node.modifier.group_labels is not None
    return left if is_many else on


def _require(named: set[str] | frozenset[str], labels: frozenset[str], node: Any) -> None:
    if not named <= labels:
        raise ValueError(f"no label {sorted(named - labels)} in {node.prettify()}")
