from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from invented import header, make_node_status, make_snapshot
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from memsampd.errors import CapabilityError, UsageError
from memsampd.estimate.estimator import Estimator
from memsampd.exporters.catalogue import CATALOGUE
from memsampd.exporters.folding import fold_phases, fold_reasons
from memsampd.exporters.http import MetricsServer
from memsampd.exporters.listen import parse_listen
from memsampd.exporters.metrics_page import renewed
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.recording import RecordingWriter, read_recording
from memsampd.exporters.snapshot import AddressTally, Snapshot
from memsampd.models.combine import combine


def samples(exporter: PrometheusExporter) -> list[Sample]:
    text = exporter.text(open_metrics=False).decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(exporter: PrometheusExporter, name: str, **labels: str) -> float:
    found = [
        sample.value
        for sample in samples(exporter)
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("kind", ["prometheus", "recording"])
def test_exporter_contract(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    exporter = PrometheusExporter() if kind == "prometheus" else RecordingWriter(path, header())
    assert isinstance(exporter, Exporter)
    for count in (1, 3):
        exporter.publish(make_snapshot(count))
    last = make_snapshot()
    estimate, addresses = replace(last.estimate, windows=77), AddressTally(5, 4, 3, 2)
    exporter.publish(replace(last, estimate=estimate, addresses=addresses))
    if isinstance(exporter, PrometheusExporter):
        for result, count in (("valid", 5), ("invalid", 4), ("lost", 3)):
            assert value(exporter, "memsampd_address_samples_total", result=result) == count
        assert value(exporter, "memsampd_address_throttles_total") == 2
        assert value(exporter, "memsampd_windows_total") == 77
    exporter.close()
    exporter.close()
    if isinstance(exporter, PrometheusExporter):
        assert {sample.name for sample in samples(exporter)} == {"memsampd_build_info"}
    else:
        summary = read_recording(path).summary
        assert summary is not None
        assert (summary.windows, summary.addresses) == (77, addresses)


def test_values(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    curve = snapshot.estimate.phases[0].curves["lru"]
    at_l1 = float(curve.miss_ratio[5])
    size = {"policy": "lru", "size_bytes": "32768"}
    assert value(exporter, "memsampd_phase_miss_ratio", phase="0", **size) == at_l1
    whole = snapshot.estimate.curves["lru"]
    assert value(exporter, "memsampd_miss_high_ratio", **size) == whole.high[5]
    filled = value(exporter, "memsampd_phase_fill_bytes_per_cpu_second", phase="0", level="L1d")
    assert filled == pytest.approx(1e8 * at_l1 * 64)
    overall = float(whole.miss_ratio[5])
    filled = value(exporter, "memsampd_fill_bytes_per_cpu_second", level="L1d")
    assert filled == pytest.approx(1.5e8 * overall * 64)
    assert value(exporter, "memsampd_accesses_per_cpu_second") == 1.5e8
    assert value(exporter, "memsampd_access_rate_known_ratio") == 0.75
    assert value(exporter, "memsampd_unknown_cpu_ratio") == 0.25
    assert value(exporter, "memsampd_accesses_total") == 9e8
    assert value(exporter, "memsampd_misses_total", **size) == pytest.approx(9e8 * overall)
    assert value(exporter, "memsampd_phase_active", phase="1") == 1
    assert value(exporter, "memsampd_phase_active", phase="0") == 0
    assert value(exporter, "memsampd_bursts_total", end="syscall") == 4


def test_memory_traffic(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    (l3,) = np.flatnonzero(snapshot.estimate.sizes_bytes == 32 << 20)
    misses = float(snapshot.estimate.totals.misses["lru"][l3])
    fetched = value(exporter, "memsampd_memory_fetched_bytes_total")
    assert fetched == pytest.approx(64 * misses)
    # All phases write with a quarter of their accesses.
    written = value(exporter, "memsampd_memory_written_back_bytes_total")
    assert written == pytest.approx(fetched / 4)
    low = value(exporter, "memsampd_memory_low_bytes_per_cpu_second")
    high = value(exporter, "memsampd_memory_high_bytes_per_cpu_second")
    whole = snapshot.estimate.curves["lru"]
    assert low == pytest.approx(1.5e8 * 64 * whole.low[l3])
    assert high == pytest.approx(1.5e8 * 64 * (whole.high[l3] + min(0.25, whole.high[l3])))
    phase = 1e8 * 64 * float(snapshot.estimate.phases[0].curves["lru"].miss_ratio[l3])
    assert value(
        exporter, "memsampd_phase_memory_bytes_per_cpu_second", phase="0"
    ) == pytest.approx(1.25 * phase)
    share = value(exporter, "memsampd_phase_memory_peak_ratio", phase="0")
    assert share == pytest.approx(0.75 * phase / 2e10 + 0.25 * phase / 1e10)
    peak = value(
        exporter, "memsampd_memory_peak_bytes_per_second", operation="write", threads="all"
    )
    assert peak == 2e10


def test_traffic_of_a_program_is_not_told_of_the_next_one(snapshot: Snapshot) -> None:
    """After an exec nothing is known at first."""
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    names = {"memsampd_memory_fetched_bytes_total", "memsampd_memory_written_back_bytes_total"}
    assert names <= {sample.name for sample in samples(exporter)}
    estimator = Estimator(snapshot.estimate.sizes_bytes, 64)
    target = replace(snapshot.target, command="next")
    exporter.publish(replace(snapshot, target=target, estimate=estimator.estimate()))
    assert not names & {sample.name for sample in samples(exporter)}


def test_another_exporter_goes_on_with_the_counters_of_traffic(snapshot: Snapshot) -> None:
    """What they count is in snapshots: the web process may be replaced at any moment."""
    first, second = PrometheusExporter(), PrometheusExporter()
    first.publish(snapshot)
    reading = tuple(replace(phase, write_share=0.0) for phase in snapshot.estimate.phases)
    second.publish(replace(snapshot, estimate=replace(snapshot.estimate, phases=reading)))
    for name in ("memsampd_memory_fetched_bytes_total", "memsampd_memory_written_back_bytes_total"):
        assert value(first, name) == value(second, name)


def test_the_daemon() -> None:
    exporter = PrometheusExporter()
    status = make_node_status()
    exporter.publish_node(replace(status, reload_trouble="line 3: no such key"))
    assert value(exporter, "memsampd_node_targets", state="failed") == 1
    assert value(exporter, "memsampd_node_targets", state="idle") == 0
    assert value(exporter, "memsampd_node_own_cpu_seconds_total") == status.own_cpu_seconds
    assert value(exporter, "memsampd_node_reload_failed") == 1
    exporter.close()
    assert {sample.name for sample in samples(exporter)} == {"memsampd_build_info"}


def test_without_a_measured_peak_there_is_no_share_of_it(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(replace(snapshot, memory_peak=None))
    names = {sample.name for sample in samples(exporter)}
    assert "memsampd_phase_memory_bytes_per_cpu_second" in names
    assert (
        not {
            "memsampd_phase_memory_peak_ratio",
            "memsampd_memory_peak_bytes_per_second",
        }
        & names
    )


def test_a_peak_of_some_cpus_is_none_of_all(snapshot: Snapshot) -> None:
    exporter, peak = PrometheusExporter(), snapshot.memory_peak
    assert peak is not None
    exporter.publish(replace(snapshot, memory_peak=replace(peak, all_threads=None)))
    found = {
        sample.labels["threads"]
        for sample in samples(exporter)
        if sample.name == "memsampd_memory_peak_bytes_per_second"
    }
    assert found == {"one"}
    assert "memsampd_phase_memory_peak_ratio" in {sample.name for sample in samples(exporter)}


def test_what_one_more_mebibyte_saves(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    whole = snapshot.estimate.curves["lru"]
    there = np.interp(np.log2(2 << 20), np.log2(whole.sizes_bytes), whole.miss_ratio)
    saved = float(whole.miss_ratio[10]) - float(there)
    assert value(exporter, "memsampd_mebibyte_gain_ratio", level="L2") == pytest.approx(saved)


def test_cycles_of_phases_are_served_where_they_are_counted() -> None:
    exporter = PrometheusExporter(max_phases=1)
    exporter.publish(make_snapshot(3))
    assert "memsampd_phase_cycles_per_instruction" not in {each.name for each in samples(exporter)}
    exporter.publish(make_snapshot(3, counters=True))
    name = "memsampd_phase_cycles_per_instruction"
    found = [each.value for each in samples(exporter) if each.name == name]
    told = make_snapshot(3, counters=True).estimate.phases
    alone = fold_phases(make_snapshot(3, counters=True), 1)[0].estimate
    cycles = sum(
        phase.instructions * (phase.cycles_per_instruction or 0)
        for phase in told
        if phase.id != alone.id
    )
    instructions = sum(phase.instructions for phase in told if phase.id != alone.id)
    assert found == pytest.approx([alone.cycles_per_instruction, cycles / instructions])


def test_every_metric_of_the_catalogue_is_served() -> None:
    snapshot = make_snapshot(counters=True)
    exporter = PrometheusExporter()
    addresses = AddressTally(samples=5)  # of a PMU
    trouble = "not permitted; become root"
    exporter.publish(replace(snapshot, trouble=trouble, addresses=addresses))
    exporter.publish_node(make_node_status())
    assert {sample.name for sample in samples(exporter)} == {metric.name for metric in CATALOGUE}


def test_series_of_the_dead_vanish_once_they_have_been_read(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    exporter.publish(make_snapshot(pid=7))
    exporter.publish(replace(snapshot, alive=False))
    before = exporter.version
    assert value(exporter, "memsampd_target_up", pid="4242") == 0
    assert exporter.version > before  # what was read is no longer to be shown
    assert {sample.labels.get("pid") for sample in samples(exporter)} == {None, "7"}


def test_cardinality_is_bounded_and_the_fold_weighs() -> None:
    snapshot = replace(make_snapshot(40), errors={f"reason {i}": i + 1 for i in range(100)})
    exporter = PrometheusExporter(max_sizes=5, max_phases=4)
    exporter.publish(snapshot)
    found = [sample for sample in samples(exporter) if sample.name == "memsampd_phase_miss_ratio"]
    assert len(found) == 5 * 5
    weights = [s.value for s in samples(exporter) if s.name == "memsampd_phase_weight_ratio"]
    assert sum(weights) == pytest.approx(1)
    assert value(exporter, "memsampd_phases") == 40
    rest = snapshot.estimate.phases[4:]
    expected = combine((phase.weight, phase.curves.get("lru")) for phase in rest)
    other = fold_phases(snapshot, 4)[-1]
    assert other.label == "other"
    assert expected is not None
    np.testing.assert_allclose(other.estimate.curves["lru"].high, expected.high)
    rates = [phase.rate.accesses_per_cpu_second or 0.0 for phase in rest]
    cpu = [phase.cpu_seconds for phase in rest]
    assert other.estimate.rate.accesses_per_cpu_second == pytest.approx(
        np.average(rates, weights=cpu)
    )
    reasons = [s.value for s in samples(exporter) if s.name == "memsampd_capture_errors_total"]
    assert (len(reasons), sum(reasons)) == (21, sum(range(1, 101)))
    assert fold_reasons({"other": 9, "a": 5, "b": 1}, 1) == {"other": 15}


def test_names_that_are_not_utf8_are_served(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(replace(snapshot, target=replace(snapshot.target, command='a"\udcff\n')))
    assert value(exporter, "memsampd_target_up", command='a"\ufffd\ufffd') == 1


def test_metrics_page_is_up_to_date() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    assert renewed(page) == page, "run python -m memsampd.exporters.metrics_page docs/metrics.md"
    with pytest.raises(ValueError, match="catalogue: begin"):
        renewed("nothing")


def test_server_serves_metrics_and_a_page_and_frees_its_port(snapshot: Snapshot) -> None:
    exporter = PrometheusExporter()
    exporter.publish(snapshot)
    server = MetricsServer(exporter.text, "127.0.0.1:0")
    root = server.url.removesuffix("/metrics")
    with urllib.request.urlopen(server.url) as answer:
        assert b"memsampd_target_up{" in answer.read()
    with urllib.request.urlopen(root) as answer:
        assert b'href="/metrics"' in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{root}/etc/passwd")
    with pytest.raises(CapabilityError, match="in use; choose another"):
        MetricsServer(exporter.text, f"127.0.0.1:{server.port}")
    other = MetricsServer(exporter.text, f"127.0.0.1:{server.port}", any_port=True)
    assert other.port not in (0, server.port)
    with urllib.request.urlopen(other.url) as answer:
        assert b"memsampd_target_up{" in answer.read()
    other.close()
    server.close()
    server.close()
    MetricsServer(exporter.text, f"127.0.0.1:{server.port}").close()


@pytest.mark.parametrize("listen", ["", "9753", ":9753", "host:", "host:99999", "host:-1", "h:x"])
def test_bad_addresses(listen: str) -> None:
    with pytest.raises(UsageError):
        parse_listen(listen)


def test_addresses() -> None:
    assert parse_listen("[::1]:80") == ("::1", 80)
    with pytest.raises(CapabilityError):
        MetricsServer(PrometheusExporter().text, "192.0.2.1:0")
