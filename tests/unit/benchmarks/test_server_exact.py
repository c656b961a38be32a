"""Exact miss ratios of servers: what is counted, and how answers are judged by it."""

from __future__ import annotations

import io

import numpy as np
import pytest

from memsampd.models.records import MissRatioCurve
from reference.records import runs_of
from reference.tracer import FRAME_HEADER
from server_exact import Exact, Row, Trace, judged, rows_of, table

SIZES = (1024, 2048, 4096)


def frame(lines: np.ndarray) -> bytes:
    """A frame of runs, as the tool writes it."""
    runs = runs_of(lines.astype(np.uint64))
    return FRAME_HEADER.pack(1, len(runs), 0, 0, len(lines), len(lines)) + runs.tobytes()


def test_misses_since_the_last_take_are_those_of_warm_caches() -> None:
    cycle = np.tile(np.arange(32), 10)  # 2 KiB over and over
    trace = Trace(io.BytesIO(frame(cycle) + frame(cycle) + b"half a header"), SIZES)
    trace.join()
    accesses, ratios = trace.take()
    assert accesses == 640
    assert ratios == [1.0, pytest.approx(32 / 640), pytest.approx(32 / 640)]
    assert trace.take()[0] == 0


def curve(middle: list[float], width: float) -> MissRatioCurve:
    ratio = np.array(middle)
    low, high = np.clip(ratio - width / 2, 0, 1), np.clip(ratio + width / 2, 0, 1)
    return MissRatioCurve(np.array(SIZES), ratio, low, high, "lru", 64, 1000)


def test_a_value_and_how_much_its_bounds_leave_open_are_judged() -> None:
    exact = Exact(1000, 10, [0.5, 0.3, 0.1])

    def missed(told: MissRatioCurve | None) -> list[str]:
        return judged(rows_of(exact, SIZES, told), SIZES[:2])

    assert missed(curve([0.5, 0.305, 0.4], 0.01)) == []
    assert missed(curve([0.52, 0.3, 0.1], 0.01)) == ["1 KiB: 2.00% off"]
    assert missed(curve([0.5, 0.32, 0.1], 0.1)) == [
        "1 KiB: bounds 10.00% apart",
        "2 KiB: 2.00% off",
        "2 KiB: bounds 10.00% apart",
    ]
    assert missed(None) == ["1 KiB: nothing is told", "2 KiB: nothing is told"]
    assert judged(rows_of(exact, SIZES, None), []) == ["no cache level is known"]


def test_only_the_caches_of_the_machine_count() -> None:
    rows = [Row(1024, 0.5, 0.9, 0.9, 0.9), Row(2048, 0.5, 0.503, 0.5, 0.51)]
    assert judged(rows, [2048]) == []
    told = table(rows, [2048]).splitlines()
    assert "90.00%" in told[0]
    assert told[1].endswith("*")
