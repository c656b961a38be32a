"""A whole session on sources of a PMU, with software events in the place of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from threads import in_a_thread
from tracees import compile_c, running
from waiting import PATIENCE_SECONDS

from memsampd import _core
from memsampd.daemon.attach import attached
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.node.attachment import Attachment, Common
from memsampd.daemon.node.discovery import ProcessKey
from memsampd.daemon.surroundings import Surroundings
from memsampd.estimate.events import WatchRecord
from memsampd.exporters.recording import Recording, read_recording
from memsampd.machines.pmu import EventPlan, HardwareEvent
from memsampd.sampler.perf.groups import TASK_CLOCK
from memsampd.sampler.pmu.choice import BranchChoice, PmuTrials
from memsampd.sampler.pmu.trial import Trial
from memsampd.sampler.process.identity import read_identity

FAULTS = HardwareEvent("page faults", _core.PERF_TYPE_SOFTWARE, 2)
LOOPING = """
#include <stdlib.h>
int main(void)
{
    long n = 1 << 20, sum = 0;
    volatile long *words = calloc(n, sizeof *words);
    for (;;)
        for (long i = 0; i < n; i++)
            if ((sum += words[i]) & 1)
                words[i] = sum;
}
"""
# Its pages come and go: a page fault tells the address of an access, as a PMU's sample does.
FAULTING = """
#include <sys/mman.h>
enum { BYTES = 4 << 20, WORDS = BYTES / 8 };
int main(void)
{
    volatile long *words =
        mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise((void *)words, BYTES, MADV_NOHUGEPAGE);
    for (;;) {
        for (int round = 0; round < 50; round++)
            for (long i = 0; i < WORDS; i++)
                words[i]++;
        madvise((void *)words, BYTES, MADV_DONTNEED);
    }
}
"""
# A word is touched ten times while all lines are gone through once.
TICKING = """
#include <stdio.h>
enum { LINES = 200000, WORDS = 8, TICKS = 10 };
static _Alignas(64) volatile long lines[LINES][WORDS];
static _Alignas(64) volatile long ticks;
int main(void)
{
    printf("%p\\n", (void *)&ticks);
    fflush(stdout);
    for (;;)
        for (long i = 0; i < LINES; i++) {
            for (long j = 0; j < WORDS; j++)
                lines[i][j] = i;
            if (i % (LINES / TICKS) == 0)
                ticks = i;
        }
}
"""
TICKS = 10
LEAST_TIMED = 5  # bursts of which the median is told


@pytest.fixture
def looping(tmp_path: Path) -> Iterator[int]:
    with running(compile_c(tmp_path, LOOPING)) as process:
        yield process.pid


def stand_ins() -> PmuTrials:
    """A nanosecond of CPU time counts as a branch, and as a load."""
    plan = EventPlan((TASK_CLOCK,), ((TASK_CLOCK, FAULTS, TASK_CLOCK, TASK_CLOCK),))
    trials = tuple(Trial(event, "") for event in plan.counters[0])
    return PmuTrials(plan, (Trial(TASK_CLOCK, ""),), (trials,))


def record_until_timed(pid: int, config: SessionConfig, path: Path) -> Recording:
    """Observe for some seconds, and ever longer until some bursts were timed."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    for doubled in count():
        longer = replace(config, duration_seconds=3.0 * 2**doubled)
        with attached(pid, longer, OutputConfig(path, overwrite=True)) as session:
            in_a_thread(session.run)  # which lowers its thread's priority
            errors = session.snapshot().errors
            # A nanosecond is a cycle and an instruction.
            phases = session.snapshot().estimate.phases
            assert [each.cycles_per_instruction for each in phases] == pytest.approx(
                [1.0] * len(phases), rel=0.05
            )
        recording = read_recording(path)
        if sum(burst.timed is not None for burst in recording.bursts) >= LEAST_TIMED:
            break
        assert time.monotonic() < give_up, errors
    return recording


@pytest.mark.parametrize("branches", ["timer", "auto"])
def test_accesses_are_those_that_were_counted(
    branches: BranchChoice, looping: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bursts and windows go at a thousand million a second, as was counted.

    A second is one of user time: by the timer so many samples, of which a busy host loses some, and
    by the PMU what was counted up to the last one. Where one of two or three turns is read late, a
    window is off by some percent: by medians these are not seen.
    """
    monkeypatch.setattr("memsampd.daemon.surroundings.try_pmu", lambda cpu: stand_ins())
    # All that this process has used before counts as its own CPU time.
    config = SessionConfig(
        schedule="all", budget_share=0.5, own_cpu_share=1e6, branches=branches, watches=False
    )
    recording = record_until_timed(looping, config, tmp_path / "recording")
    named = {"timer": "perf-task-clock", "auto": "pmu-branches"}
    assert recording.header.backend == {
        "branches": named[branches],
        "accesses": "replica",
        "clock": "counters",
        "long_distances": "none",
    }
    timed = [burst.timed for burst in recording.bursts if burst.timed is not None]
    assert {each.method for each in timed} == {"counters"}
    # The nanoseconds stand for instructions and cycles, too.
    speeds = [window.speed for window in recording.windows if window.speed is not None]
    rates = [rate for window in recording.windows for rate in window.rates]
    for found in (
        [each.accesses_per_cpu_second for each in timed],
        [each.accesses_per_cpu_second for each in rates],
        [each.instructions_per_cpu_second for each in speeds],
    ):
        assert statistics.median(found) == pytest.approx(1e9, rel=0.05)
    for speed in speeds:
        assert speed.cycles_per_instruction == pytest.approx(1.0, rel=0.05)


@pytest.fixture
def sampled_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page faults in the place of PEBS."""
    trials = PmuTrials(addresses=(Trial(FAULTS, ""),))
    monkeypatch.setattr("memsampd.daemon.surroundings.try_pmu", lambda cpu: trials)
    monkeypatch.setattr("memsampd.daemon.composition.SAMPLED_PERIOD", 20)


@pytest.mark.usefixtures("sampled_faults")
def test_lines_come_from_bursts_and_from_sampled_accesses(tmp_path: Path) -> None:
    """Both kinds of lines are watched, and told apart."""
    path = tmp_path / "recording"
    config = SessionConfig(own_cpu_share=1e6, budget_share=0.5)
    give_up = time.monotonic() + PATIENCE_SECONDS

    def watches() -> list[WatchRecord]:
        return [each for each in read_recording(path).events if isinstance(each, WatchRecord)]

    with (
        running(compile_c(tmp_path, FAULTING)) as process,
        attached(process.pid, config, OutputConfig(path)) as session,
    ):
        while {each.is_sampled for each in watches()} != {False, True}:
            assert time.monotonic() < give_up, session.snapshot().errors
            time.sleep(0.05)
            session.step()
        session.finish(observed_no_more=True)
    recording = read_recording(path)
    assert recording.header.backend["accesses"] == "replica"
    assert recording.header.backend["lines"] == "replica, pmu-accesses"
    windows = {window.index for window in recording.windows}
    for watch in watches():
        assert watch.window in windows
        assert (watch.least_accesses == 1) is watch.is_sampled


@pytest.mark.usefixtures("sampled_faults")
def test_sampled_lines_go_on_where_accesses_come_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their events stay as they are: there may be no descriptors for others by then."""
    common = Common(Surroundings.read(), lambda: True, lambda: 1.0, (), lambda start: start(), None)
    config = SessionConfig()
    give_up = time.monotonic() + PATIENCE_SECONDS
    with running(compile_c(tmp_path, FAULTING)) as process:
        key = ProcessKey(process.pid, read_identity(process.pid).start_ticks)
        made = Attachment(key, common, lambda: True, lambda: True, print)
        with closing(made) as attachment:
            session = attachment.open(config)
            monkeypatch.setattr("memsampd.daemon.node.attachment._FILES_PART", 0)
            assert attachment.change_accesses(replace(config, accesses="watchpoints")) is not None
            sampled = session.snapshot().addresses.samples
            while session.snapshot().addresses.samples == sampled:
                assert time.monotonic() < give_up
                attachment.step(has_bursts=True)


def test_distances_are_what_was_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores to one word in the place of all: every line returns after ten of them."""
    path = tmp_path / "recording"
    config = SessionConfig(own_cpu_share=1e6, budget_share=0.5, branches="timer", clock="counters")
    give_up = time.monotonic() + PATIENCE_SECONDS
    # What counts needs debug registers here.
    monkeypatch.setattr("memsampd.sampler.perf.watchpoints.POINTS", 1)
    with running(compile_c(tmp_path, TICKING)) as process:
        assert process.stdout is not None
        word = int(process.stdout.readline(), 16)
        ticks = HardwareEvent("ticks", _core.PERF_TYPE_BREAKPOINT, 0, word, 8, bp_type=2)
        counters = (ticks, FAULTS, TASK_CLOCK, TASK_CLOCK)
        trials = tuple(Trial(event, "") for event in counters)
        pmu = PmuTrials(EventPlan(counters=(counters,)), counters=(trials,))
        monkeypatch.setattr("memsampd.daemon.surroundings.try_pmu", lambda cpu: pmu)
        with attached(process.pid, config, OutputConfig(path)) as session:
            pauses: list[float] = []
            while len(pauses) < 20:
                assert time.monotonic() < give_up, session.snapshot().errors
                time.sleep(0.05)
                session.step()
                events = read_recording(path).events
                watches = [each for each in events if isinstance(each, WatchRecord)]
                counted = [np.diff(each.counted[1:-1]) for each in watches if each.counted]
                pauses = [float(each) for each in np.concatenate([[], *counted])]
            session.finish(observed_no_more=True)
    recording = read_recording(path)
    assert recording.header.backend["distances"] == "counters"
    # A hypervisor may tell a hit twice, of the line or of what is counted.
    assert np.median(pauses) == TICKS
    assert np.mean(np.array(pauses) == TICKS) > 0.8
