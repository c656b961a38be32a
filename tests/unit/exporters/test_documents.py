from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from invented import CACHES, OVERHEAD, SIZES_BYTES, make_node_status, make_snapshot, nothing_known
from msgspec.structs import replace

from memsampd.exporters.documents import (
    Document,
    curves_document,
    is_idle,
    node_document,
    not_known,
    phases_document,
    target_document,
    target_id,
    window_document,
)
from memsampd.exporters.snapshot import AddressTally, Snapshot
from memsampd.phases.records import Assignment, Window

WINDOW = Window(41, 4.1, 4.2, 0.1, np.ones(4), 4, 1, 0, {7: 4})
EVERY = (target_document, phases_document, curves_document, window_document)


def unlike_any() -> Snapshot:
    """Before the first window."""
    return replace(make_snapshot(1), estimate=nothing_known(SIZES_BYTES), phase=None)


@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("snapshot", [make_snapshot(), unlike_any()], ids=["run", "start"])
def test_a_document_is_json_with_a_version_and_names_its_target(
    make: Callable[[Snapshot], Document], snapshot: Snapshot
) -> None:
    document = json.loads(json.dumps(make(snapshot), allow_nan=False))
    assert document["version"] == 1
    assert document["target"] == target_id(snapshot.target) == "4242-99"
    assert document["time_monotonic_seconds"] == 12.5


def test_a_pid_that_comes_again_is_another_target() -> None:
    target = make_snapshot().target
    assert target_id(target) != target_id(replace(target, start_ticks=100))


def test_the_target_has_the_curve_at_each_cache_with_bounds_and_traffic() -> None:
    snapshot = make_snapshot()
    document = target_document(snapshot)
    assert (document["pid"], document["command"]) == (4242, "sqlite3")
    assert (document["bursts"], document["sampled_accesses"]) == (7, 12000)
    curve = snapshot.estimate.curves["lru"]
    assert [cache["name"] for cache in document["caches"]] == list(CACHES)
    first = document["caches"][0]
    assert first["miss_ratio"] == pytest.approx(curve.miss_ratio[5])
    assert (first["low"], first["high"]) == pytest.approx((curve.low[5], curve.high[5]))
    assert first["fill_bytes_per_cpu_second"] == pytest.approx(1.5e8 * curve.miss_ratio[5] * 64)
    now = snapshot.estimate.phases[1].curves["lru"]
    assert document["caches_now"][0]["miss_ratio"] == pytest.approx(now.miss_ratio[5])
    assert document["cost"]["stop_seconds"] == OVERHEAD.stop_seconds
    assert document["cost"]["bursts"]["calls_equal"] == 19


def test_a_cache_beyond_the_sizes_is_not_known() -> None:
    snapshot = replace(make_snapshot(), cache_sizes_bytes={"L3": 1 << 40})
    (cache,) = target_document(snapshot)["caches"]
    assert cache["miss_ratio"] is cache["low"] is cache["fill_bytes_per_cpu_second"] is None


def test_phases_and_curves_hold_what_the_estimate_holds() -> None:
    snapshot = make_snapshot()
    phases, curves = phases_document(snapshot)["phases"], curves_document(snapshot)
    assert [phase["id"] for phase in phases] == [phase["id"] for phase in curves["phases"]]
    assert sum(phase["weight"] for phase in phases) == pytest.approx(1)
    assert curves["sizes_bytes"] == SIZES_BYTES.tolist()
    for drawn, known in zip(curves["phases"], snapshot.estimate.phases, strict=True):
        if known.curves:
            assert drawn["miss_ratio"] == known.curves["lru"].miss_ratio.tolist()
            assert drawn["high"] == known.curves["lru"].high.tolist()
        else:
            assert drawn["miss_ratio"] is drawn["low"] is drawn["high"] is None
    assert curves["phases"][-1]["miss_ratio"] is None  # the last has no burst


def test_phases_tell_cycles_where_counters_do() -> None:
    for counters in (False, True):
        snapshot = make_snapshot(counters=counters)
        told = [phase["cycles_per_instruction"] for phase in phases_document(snapshot)["phases"]]
        assert told == [phase.cycles_per_instruction for phase in snapshot.estimate.phases]
        assert (None in told) is not counters


def test_a_window_is_told_with_its_phase() -> None:
    snapshot = replace(make_snapshot(), window=WINDOW)
    told = window_document(snapshot, None, Assignment(1, 0.25, is_new=True))
    assert (told["window"], told["cpu_seconds"], told["lost"]) == (41, 0.1, 1)
    assert (told["phase"], told["is_new"], told["distance"]) == (1, True, 0.25)
    assert told["miss_ratio"] == snapshot.estimate.phases[1].curves["lru"].miss_ratio.tolist()
    assert told["whole_run"]["unknown_cpu_seconds"] == 1.5
    later = replace(WINDOW, index=42)
    assert window_document(snapshot, later)["window"] == 42


def test_a_window_has_the_curve_of_its_own_phase() -> None:
    """Though further windows may have ended in the same turn."""
    snapshot = make_snapshot()
    own, last = snapshot.estimate.phases[0], snapshot.estimate.phases[1]
    assert snapshot.phase == last.id
    told = window_document(snapshot, WINDOW, Assignment(own.id, 0.25))
    assert told["miss_ratio"] == own.curves["lru"].miss_ratio.tolist()
    assert told["miss_ratio"] != last.curves["lru"].miss_ratio.tolist()


def whys(snapshot: Snapshot) -> dict[str, Document]:
    return {entry["what"]: entry for entry in not_known(snapshot)}


def test_what_is_not_known_is_said_with_its_reason() -> None:
    snapshot = replace(
        make_snapshot(trouble="the target is traced by gdb; end it"),
        refusals={"target is not running": "it sleeps; wait"},
    )
    said = whys(snapshot)
    assert said["curves"]["share"] == pytest.approx(0.25)
    assert said["rates"]["share"] == pytest.approx(0.25)
    assert "traced by gdb" in said["bursts"]["why"]
    assert said["refused"]["why"] == "2 bursts refused (target is not running): it sleeps; wait"
    assert said["samples"]["why"].startswith("7 ")


def test_child_processes_have_no_burst() -> None:
    snapshot = make_snapshot()
    assert "children" not in whys(snapshot)
    said = whys(replace(snapshot, child_share=0.25))["children"]
    assert said["share"] == 0.25
    assert "bursts are taken of the process itself only" in said["why"]


def test_before_the_first_window_nothing_is_known() -> None:
    assert whys(unlike_any())["windows"]["share"] == 1
    waiting = replace(OVERHEAD, waits_for_own_cpu=True)
    assert "bursts" in whys(replace(unlike_any(), overhead=waiting))


def test_without_bursts_no_miss_ratio_is_known() -> None:
    snapshot = make_snapshot()
    estimate = replace(snapshot.estimate, curves={})
    assert whys(replace(snapshot, estimate=estimate))["curves"]["share"] == 1


def test_when_all_is_known_nothing_is_said() -> None:
    snapshot = make_snapshot()
    estimate = replace(snapshot.estimate, unknown_cpu_seconds=0.0, rate_known_share=1.0)
    bare = replace(snapshot, estimate=estimate, errors={}, lost=0)
    assert not_known(bare) == []
    (told,) = not_known(replace(bare, addresses=AddressTally(lost=3)))
    assert told["why"] == "3 samples of accesses were lost"


def test_a_target_that_has_ended_is_not_idle() -> None:
    snapshot = replace(make_snapshot(), idle_seconds=3.0)
    assert is_idle(snapshot)
    assert not is_idle(replace(snapshot, alive=False))
    assert not is_idle(replace(snapshot, idle_seconds=1.9))


def test_a_node_is_told_with_what_it_cannot_observe_and_why() -> None:
    document = json.loads(json.dumps(node_document(make_node_status()), allow_nan=False))
    assert (document["version"], document["memsampd_version"]) == (1, "0.1.0")
    assert document["by_state"]["failed"] == 1
    failed = document["targets"][1]
    assert (failed["target"], failed["pid"], failed["command"]) == ("5-7", 5, "nginx")
    assert (failed["reason"], failed["remedy"]) == ("nginx is traced by gdb", "end gdb")
