"""How many series a target makes: what docs/prometheus.md says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
from invented import make_snapshot
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from promql import ROOT, rules
from yaml import safe_load

from memsampd.estimate.records import Estimate
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.snapshot import Snapshot
from memsampd.models.records import MissRatioCurve

ROWS = re.findall(
    r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", (ROOT / "docs/prometheus.md").read_text(), re.M
)


def target(phases: int, policies: Sequence[str] = ("lru",)) -> Snapshot:
    """A target of so many phases, all with curves, as a session makes them."""

    def of_each(curves: Mapping[str, MissRatioCurve]) -> dict[str, MissRatioCurve]:
        return {policy: replace(curves["lru"], policy=policy) for policy in policies}

    snapshot = make_snapshot(phases + 1)  # the last has no burst
    known = tuple(
        replace(phase, curves=of_each(phase.curves)) for phase in snapshot.estimate.phases[:phases]
    )
    estimate: Estimate = snapshot.estimate
    misses = dict.fromkeys(policies, estimate.totals.misses["lru"])
    estimate = replace(
        estimate,
        phases=known,
        curves=of_each(estimate.curves),
        totals=replace(estimate.totals, misses=misses),
    )
    return replace(snapshot, estimate=estimate, errors={"not-running": 1, "in-syscall": 2})


def series(snapshot: Snapshot) -> list[Sample]:
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    text = exporter.text(open_metrics=False).decode()
    return [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "pid" in sample.labels
    ]


def kept_by_a_fleet(samples: list[Sample]) -> int:
    config = safe_load((ROOT / "prometheus/fleet.yml").read_text())
    (job,) = config["scrape_configs"]
    dropped = job["metric_relabel_configs"]

    def is_dropped(sample: Sample) -> bool:
        labels = {"__name__": sample.name, **sample.labels}
        return any(
            re.fullmatch(rule["regex"], ";".join(labels.get(n, "") for n in rule["source_labels"]))
            for rule in dropped
        )

    return sum(not is_dropped(sample) for sample in samples)


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_the_documented_numbers(row: tuple[str, str, str, str]) -> None:
    phases, scraped, kept, with_random = map(int, row)
    found = series(target(phases))
    assert (len(found), kept_by_a_fleet(found)) == (scraped, kept)
    assert len(series(target(phases, ("lru", "random")))) == with_random


def test_they_are_documented() -> None:
    assert len(ROWS) == 4


def test_recorded_series_are_few() -> None:
    """One a target and rule, but for those by size and by level."""
    per_target = sum(
        {
            "target:memsampd_miss_ratio:rate5m": 17,
            "target:memsampd_mebibyte_saved_misses:rate5m": 3,
        }.get(rule["record"], 1)
        for rule in rules("memsampd.rules.yml")
        if rule["record"].startswith("target:")
    )
    assert per_target == 24
    assert f"{per_target} recorded series" in (ROOT / "docs/prometheus.md").read_text()
