"""What a sample costs is measured on this very machine."""

from __future__ import annotations

import os

import pytest
from tracees import descriptors

from memsampd import _core
from memsampd.sampler.perf.costs import (
    SamplingCost,
    measure_cold_interrupt_seconds,
    measure_interrupt_seconds,
)


def test_it_is_a_time_and_leaves_nothing_open() -> None:
    before = descriptors()
    assert measure_interrupt_seconds() >= 0
    assert descriptors() == before


def test_it_is_the_difference_by_the_number_of_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond alone; 1.2 with an interrupt each 50 us, of which there are then 24."""
    opened: list[int] = []

    def open_counter(*words: int, period: int) -> int:
        opened.append(period)
        return os.open("/dev/null", os.O_RDONLY)

    def work_ns() -> int:
        if len(opened) > worked.count(1_200_000):
            worked.append(1_200_000)
        else:
            worked.append(1_000_000)
        return worked[-1]

    worked: list[int] = []
    monkeypatch.setattr(_core, "perf_open_counter", open_counter)
    monkeypatch.setattr("memsampd.sampler.perf.costs._work_ns", work_ns)
    assert measure_interrupt_seconds() == pytest.approx(200_000e-9 / 24)
    assert set(opened) == {50_000}


def test_a_refusal_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: int, period: int) -> int:
        raise PermissionError

    monkeypatch.setattr(_core, "perf_open_counter", refuse)
    assert measure_interrupt_seconds() == 0


@pytest.mark.usefixtures("perf_events")
def test_cold_ones_take_no_less_and_leave_nothing_open() -> None:
    """Where one takes a nanosecond, each look at the clock is one: so long a look takes."""
    before = descriptors()
    assert measure_cold_interrupt_seconds(1e-9) > 1e-9
    assert measure_cold_interrupt_seconds(1.0) == 1.0
    assert measure_cold_interrupt_seconds(0.0) == 0.0
    assert descriptors() == before


def test_what_is_refused_is_not_measured_cold_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: int, period: int) -> int:
        raise PermissionError

    monkeypatch.setattr(_core, "perf_open_counter", refuse)
    assert measure_cold_interrupt_seconds(1e-9) == 1e-9


def test_pauses_are_as_many_and_as_long_as_asked_for() -> None:
    area = bytearray(1 << 16)
    pauses = _core.memory_pauses(area, 1e-9, 20, 5.0)
    assert len(pauses) == 20
    assert min(pauses) >= 1e-9
    assert _core.memory_pauses(area, 60.0, 1, 0.001) == []
    for count in (0, 1025):
        with pytest.raises(ValueError, match="1 to 1024 pauses"):
            _core.memory_pauses(area, 1e-9, count, 1.0)


@pytest.mark.parametrize(
    ("interrupt_seconds", "period_seconds"),
    [(0.0, 0.002), (2e-6, 0.002), (10e-6, 0.002), (16e-6, 0.0032), (30e-6, 0.004)],
)
def test_where_interrupts_are_dear_samples_are_further_apart(
    interrupt_seconds: float, period_seconds: float
) -> None:
    assert SamplingCost(interrupt_seconds).period_seconds == pytest.approx(period_seconds)
