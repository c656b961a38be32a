"""Profiles that last, on real processes: known again, by whom, and what goes wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import memsampd
from daemons import Daemon, daemon
from numpy.typing import NDArray
from serving import ask
from tracees import compile_c, running
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.daemon.attach import attached
from memsampd.daemon.branches import named_branches
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.session import Session
from memsampd.daemon.store.file import FILE_NAME
from memsampd.estimate.events import BurstRecord
from memsampd.exporters.analysis import estimator_of
from memsampd.exporters.recording import read_recording
from memsampd.exporters.snapshot import Snapshot
from memsampd.phases.branchmap import BranchMap, BranchMaps
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.process.maps import read_maps
from memsampd.sampler.process.memory import CodeReader

# For machines that are busy with other things; nothing is asserted on it.
# Goes through its area in one of two ways, for so long each that windows are of one of them.
PROGRAM = r"""
#include <stdlib.h>
#include <time.h>
static double spent(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
__attribute__((noipa)) long forwards(volatile long *area, long words)
{
    long sum = 0;
    for (long at = 0; at < words; at++) sum += area[at];
    return sum;
}
__attribute__((noipa)) long around(volatile long *area, long words)
{
    unsigned long at = 1, sum = 0;
    for (long k = 0; k < words; k++) {
        at = at * 2862933555777941757UL + 3037000493UL;
        sum += area[at % words];
    }
    return sum;
}
int main(int count, char **words)
{
    long size = (atol(words[2]) << 10) / sizeof(long);
    long *area = calloc(size, sizeof *area);
    for (long sum = 0;;) {
        for (double end = spent() + 0.3; spent() < end;) sum += forwards(area, size);
        for (double end = spent() + 0.3; spent() < end;) sum += around(area, size);
    }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("program"), PROGRAM, "-fPIE", "-pie")


@contextmanager
def observed(pid: int, directory: Path, name: str) -> Iterator[Session]:
    # All that this process has used before counts as its own CPU time.
    config = SessionConfig(own_cpu_share=1e6, budget_share=0.2)
    output = OutputConfig(directory / name, store=directory / "store")
    with attached(pid, config, output) as session:
        yield session


def step_until(session: Session, is_so: Callable[[Snapshot], object]) -> Snapshot:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not is_so(snapshot := session.snapshot()):
        assert time.monotonic() < give_up, in_short(snapshot)
        time.sleep(0.05)
        session.step()
    return snapshot


def in_short(snapshot: Snapshot) -> str:
    """What tells why something did not come."""
    estimate, used = snapshot.estimate, snapshot.overhead
    phases = [(each.id, each.windows, each.bursts, each.stored_bursts) for each in estimate.phases]
    return (
        f"{phases=} {snapshot.samples=} {snapshot.lost=} {snapshot.burst_ends=} {snapshot.errors=}"
        f" {snapshot.refusals=} {snapshot.trouble=} {used.target_cpu_seconds=} {used.stop_seconds=}"
        f" {used.hit_seconds=} {used.sampled_share=} {used.waits_for_own_cpu=}"
    ).replace("snapshot.", "")


def is_profiled(snapshot: Snapshot) -> bool:
    """Whether two phases have bursts."""
    return sum(phase.bursts > 1 for phase in snapshot.estimate.phases) >= 2


def knows(snapshot: Snapshot) -> bool:
    """Whether two phases have come that are known from before."""
    return sum(phase.stored_bursts > 0 for phase in snapshot.estimate.phases) >= 2


@pytest.fixture(scope="module")
def learned(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose store knows the program on 256 KiB: for copies."""
    directory = tmp_path_factory.mktemp("learned")
    learn(program, directory, "256")
    return directory


def learn(program: Path, directory: Path, kibibytes: str) -> None:
    with running(program, "job", kibibytes) as process:
        with observed(process.pid, directory, "first") as session:
            step_until(session, is_profiled)
            session.finish()
        assert process.poll() is None


def test_another_process_of_the_program_is_known(
    program: Path, learned: Path, tmp_path: Path
) -> None:
    shutil.copytree(learned, tmp_path, dirs_exist_ok=True)
    with (
        running(program, "job", "257") as process,
        observed(process.pid, tmp_path, "second") as session,
    ):
        assert not session.hurries
        known = step_until(session, knows)
        session.finish()
        live = session.snapshot().estimate
    assert all("lru" in phase.curves for phase in known.estimate.phases if phase.stored_bursts)
    recording = read_recording(tmp_path / "second")
    stored = [each for each in recording.bursts if each.is_stored]
    first = recording.events[: len(stored)]
    assert all(isinstance(each, BurstRecord) and each.is_stored for each in first)
    assert all(each.time_seconds < 0 and each.cost.target_seconds == 0 for each in stored)
    replayed = estimator_of(recording.header, live.sizes_bytes)
    for event in recording.events:
        replayed.add(event)
    replayed.finish()
    again = replayed.estimate()
    # But for rounding: the live one was asked more often.
    assert again.curves["lru"].miss_ratio == pytest.approx(
        live.curves["lru"].miss_ratio, rel=1e-9, abs=1e-12
    )
    assert "known from before" in memsampd("report", "--partial", tmp_path / "second").stdout


def test_other_arguments_are_another_program(program: Path, learned: Path, tmp_path: Path) -> None:
    shutil.copytree(learned, tmp_path, dirs_exist_ok=True)
    with (
        running(program, "task", "256") as process,
        observed(process.pid, tmp_path, "second") as session,
    ):
        snapshot = step_until(session, lambda snapshot: snapshot.estimate.windows)
        assert not any(phase.stored_bursts for phase in snapshot.estimate.phases)
        session.finish()
    assert not any(each.is_stored for each in read_recording(tmp_path / "second").bursts)


def test_what_is_otherwise_now_is_dropped_and_said(program: Path, tmp_path: Path) -> None:
    """The same code, on an area that fits no cache of the sizes where the first one did."""
    learn(program, tmp_path, "16")
    with (
        running(program, "job", "16384") as process,
        observed(process.pid, tmp_path, "second") as session,
    ):
        snapshot = step_until(session, lambda snapshot: snapshot.store_drops)
        session.finish()
    assert snapshot.store_drops >= 1
    listed = memsampd("store", "list", "--file", tmp_path / "store")
    assert "program" in listed.stdout, listed.stderr
    forgotten = memsampd("store", "forget", "--all", "--file", tmp_path / "store")
    assert forgotten.stdout.startswith("1 profile is forgotten;")


@dataclass
class Run:
    """A process's branch vectors, by names and by addresses, and where it was loaded."""

    named: NDArray[np.float64]
    addressed: NDArray[np.float64]
    start: int


def vectors(program: Path) -> Run:
    with running(program, "job", "256") as process:
        pid, named, addressed = process.pid, np.zeros(4096), np.zeros(4096)
        maps = named_branches(pid), BranchMaps(lambda each: BranchMap(CodeReader(each)))
        give_up = time.monotonic() + PATIENCE_SECONDS
        with closing(TaskClockSource(pid, period_seconds=0.001)) as source:
            while named.sum() < 600:  # a round of both ways
                assert time.monotonic() < give_up
                batch = source.read(0.1)
                for vector, each in zip((named, addressed), maps, strict=True):
                    bins = WindowCutter(0.1, 64, each.lookup).bins(batch)
                    vector += np.bincount(bins, minlength=4096)
        start = next(m.start for m in read_maps(pid).mappings if m.path == str(program))
    return Run(named / named.sum(), addressed / addressed.sum(), start)


def test_two_runs_of_a_program_have_like_vectors_wherever_it_is_loaded(program: Path) -> None:
    one, other = vectors(program), vectors(program)
    assert np.sqrt(one.named * other.named).sum() > 0.9
    if one.start == other.start:
        pytest.skip("this machine loads programs at the same address each time")
    # By chance two addresses fall into one bin, now and then.
    others = chain([other], (vectors(program) for _ in range(2)))
    assert any(np.sqrt(one.addressed * each.addressed).sum() < 0.1 for each in others)


# -- the daemon ----------------------------------------------------------------------------------


@pytest.fixture
def busy(program: Path) -> Iterator[subprocess.Popen[str]]:
    with running(program, "job", "256") as process:
        yield process


def has_bursts(pid: int) -> Callable[[dict[int, dict[str, object]]], object]:
    return lambda targets: targets.get(pid, {}).get("bursts")


def windows_of(running_daemon: Daemon, pid: int) -> dict[str, Any]:
    """What its web process tells of the last day of a process; empty before the first."""
    page = re.findall(r"page: (\S+)", running_daemon.log)[-1]
    status, _, listed = ask(page, "/api/v1/targets")
    ids = [each["target"] for each in listed["targets"] if each["pid"] == pid]
    if status != 200 or not ids:
        return {}
    found: dict[str, Any] = ask(page, f"/api/v1/targets/{ids[0]}/windows?points=2000")[2]
    return found


def cpu_of_phases(windows: dict[str, Any], before_unix_seconds: float) -> Counter[int]:
    """CPU time by phase of the columns that begin before a moment."""
    used: Counter[int] = Counter()
    columns = zip(windows["start_unix_seconds"], windows["phase_cpu_seconds"], strict=True)
    for start, row in columns:
        if start < before_unix_seconds:
            used.update(dict(zip(windows["phases"], row, strict=True)))
    return used


def test_a_restarted_daemon_knows_what_the_last_one_learned_and_saw(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    listen = ("--listen", "127.0.0.1:0")
    with daemon(tmp_path / "d", options=listen) as first:
        first.ask("attach", pid=busy.pid)
        first.wait_for(has_bursts(busy.pid))
        seen = wait_for(
            lambda: (told := windows_of(first, busy.pid)) and any(told["miss_ratio"]) and told,
            lambda: first.log,
        )
        assert seen["stored_until_unix_seconds"] is None
        assert first.ask("status")["status"]["store_trouble"] == ""
        assert first.stop() == 0
    store = tmp_path / "d" / "state" / FILE_NAME
    assert store.stat().st_mode & 0o077 == 0
    assert "known from the store" not in first.log
    with daemon(tmp_path / "d", options=listen) as second:
        wait_for(lambda: "known from the store" in second.log, lambda: second.log)
        again = wait_for(
            lambda: (told := windows_of(second, busy.pid)) and told["cpu_seconds"] and told,
            lambda: second.log,
        )
        # It goes on from where the first one was, and says so.
        until = again["stored_until_unix_seconds"]
        assert until >= seen["until_unix_seconds"] - 1
        kept = cpu_of_phases(again, until)
        assert sum(kept.values()) >= 0.9 * sum(seen["cpu_seconds"])
        # Phases with bursts are the same ones; what they miss was known before they ran again.
        assert any(used for phase, used in kept.items() if phase >= 0)
        columns = zip(again["start_unix_seconds"], again["miss_ratio"], strict=True)
        assert any(ratios is not None for start, ratios in columns if start < until)
        assert second.stop() == 0


def test_a_daemon_that_is_told_so_keeps_nothing(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    with daemon(tmp_path / "d", "[store]\nkeep = false\n") as keeps_nothing:
        keeps_nothing.ask("attach", pid=busy.pid)
        keeps_nothing.wait_for(has_bursts(busy.pid))
        assert keeps_nothing.stop() == 0
    assert not (tmp_path / "d" / "state" / FILE_NAME).exists()


def test_a_corrupt_store_is_set_aside_and_another_one_begun(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    state = tmp_path / "d" / "state"
    state.mkdir(parents=True, mode=0o700)
    (state / FILE_NAME).write_bytes(b"not at all " * 1000)
    with daemon(tmp_path / "d") as running_daemon:
        running_daemon.ask("attach", pid=busy.pid)
        running_daemon.wait_for(has_bursts(busy.pid))
        assert running_daemon.ask("status")["status"]["store_trouble"] == ""
        assert running_daemon.stop() == 0
    assert f"it is {state / FILE_NAME}.unusable now" in running_daemon.log
    listed = memsampd("store", "list", "--file", state / FILE_NAME)
    assert "program" in listed.stdout, listed.stderr


MOUNTS = {
    "full": "mount -t tmpfs -o size=16k,mode=700 none {state}",
    "read-only": "mount -t tmpfs -o ro,mode=700 none {state}",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a file system")
@pytest.mark.parametrize("how", MOUNTS)
def test_a_state_directory_that_cannot_be_written_is_said_and_observation_goes_on(
    tmp_path: Path, busy: subprocess.Popen[str], how: str
) -> None:
    state = tmp_path / "d" / "state"
    state.mkdir(parents=True)
    mount = MOUNTS[how].format(state=state)
    before = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:  # root of a container may not
        pytest.skip(f"nothing can be mounted here: {tried.stderr}")
    with daemon(tmp_path / "d", before=before) as running_daemon:
        running_daemon.ask("attach", pid=busy.pid)
        running_daemon.wait_for(has_bursts(busy.pid))
        running_daemon.ask("detach", pid=busy.pid)
        trouble = wait_for(
            lambda: running_daemon.ask("status")["status"]["store_trouble"],
            lambda: running_daemon.log,
        )
        assert f"{FILE_NAME} cannot be used" in trouble
        assert f"{trouble}; profiles are not kept, nor known again" in running_daemon.log
        running_daemon.ask("attach", pid=busy.pid)
        running_daemon.wait_for(has_bursts(busy.pid))
        assert running_daemon.stop() == 0
    assert busy.poll() is None
