"""One program that a process runs, and what of it the next one takes over."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from memsampd.daemon.learners import Known, Learners
from memsampd.daemon.program import Program
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.records import Window
from memsampd.phases.unseen import UnseenCode
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.process.mapped import MemoryUse
from memsampd.sampler.spacing import DataSpacing


def program(known: Known | None = None, first_phase: int = 0) -> Program:
    learners = Learners(
        LeaderFollower(first_id=first_phase),
        RunLengthMarkov(),
        DriftMonitor(),
        ProgressClock(),
        UnseenCode(1),
        DataSpacing(1, lambda address, size_bytes: b""),
        known or Known(),
    )
    return Program(learners, first_phase, now_seconds=5.0)


def run(runs: Program, *phases: int) -> list[int | None]:
    """Let windows of these phases end; returns the phases that were expected."""
    expected = []
    for phase in phases:
        index = runs.window.index + 1 if runs.window is not None else 0
        end_seconds = 0.1 * (index + 1)
        window = Window(index, 0.1 * index, end_seconds, 0.1, np.ones(8), 10, 0, 0, {1: 10})
        expected.append(runs.end_window(window, phase))
    return expected


def test_a_window_is_compared_with_what_was_expected_before_it() -> None:
    runs = program()
    assert run(runs, 0, 0, 1) == [None, 0, 0]
    assert runs.accuracy.overall == pytest.approx(1 / 2)
    assert runs.phase == 1
    assert runs.window is not None
    assert runs.window.index == 2


def test_the_next_program_numbers_its_phases_from_behind_all_of_this_one() -> None:
    runs = program(first_phase=3)
    assert runs.next_phase == 3
    run(runs, 3, 5, 4)
    assert runs.next_phase == 6
    assert program(Known({3: 10, 7: 1}), first_phase=3).next_phase == 8


def test_a_program_that_is_known_has_had_a_burst_and_is_told_first() -> None:
    assert program().is_first
    assert program().is_resumed
    known = program(Known({0: 10}))
    assert not known.is_first
    assert not known.is_resumed


def test_phases_that_are_one_are_one_everywhere() -> None:
    runs = program()
    run(runs, 0, 1, 1)
    runs.merge(1, 0)
    assert runs.phases == {0}
    assert runs.phase == 0
    assert runs.predicted_phase == 0
    closed = runs.closed.find(0.15)
    assert closed is not None
    assert (closed.index, closed.phase) == (1, 0)


def test_memory_that_it_was_given_adds_up_until_it_is_taken() -> None:
    runs = program()
    assert runs.take_memory() is None
    runs.add_memory(MemoryUse(100, 10))
    runs.add_memory(MemoryUse(120, 20))
    assert runs.take_memory() == MemoryUse(120, 30)
    assert runs.take_memory() == MemoryUse(120, 0)
    runs.add_memory(MemoryUse(130, 10))  # in one of three windows
    given = [runs.take_memory(of_windows) for of_windows in (3, 2, 1)]
    assert given == [MemoryUse(130, 3), MemoryUse(130, 3), MemoryUse(130, 4)]
    runs.add_memory(None)
    assert runs.take_memory() is None


def test_other_code_is_met_soon_after_other_code_only() -> None:
    runs = program()
    assert not runs.meets_new_code(5.0)
    runs.goes_on_to_other_code(5.0)
    assert runs.meets_new_code(5.2)
    assert not runs.meets_new_code(6.0)


def test_a_phase_is_its_own_once_it_ran_in_it_itself() -> None:
    """A window without samples of its threads is one of its children."""
    runs = program()
    run(runs, 0)
    assert runs.window is not None
    for phase in (1, 2):
        runs.end_window(replace(runs.window, thread_samples={}), phase)
    assert [runs.own(phase) for phase in (None, 0, 1, 2)] == [None, 0, None, None]
    runs.merge(0, 1)
    assert [runs.own(phase) for phase in (0, 1, 2)] == [None, 1, None]
