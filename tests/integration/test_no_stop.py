"""Accesses without a stop: what memsampd calls, what becomes of the target, what is told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from needed import tool
from tracees import compile_c, descriptors, patiently, running, tries
from waiting import PATIENCE_SECONDS

from memsampd import _core
from memsampd.daemon.accesses import ReplicaTrial, choose_accesses, ptrace_refusal
from memsampd.daemon.attach import attached
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.watching import WatchPlan
from memsampd.errors import CapabilityError, TargetError
from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import BurstRecord, WatchRecord
from memsampd.exporters.recording import Recording, read_recording
from memsampd.machines.pmu import HardwareEvent
from memsampd.models.open_lines import OpenLine
from memsampd.sampler.perf.watch import WatchOrder
from memsampd.sampler.perf.watchpoints import Watchpoints
from memsampd.sampler.pmu.choice import PmuTrials
from memsampd.sampler.pmu.trial import Trial
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.walk.memory import RunningMemory
from memsampd.sampler.walk.source import WalkSource

MEMSAMPD = [sys.executable, "-m", "memsampd.cli.main"]
# Goes through an array with a known pattern, and notices whatever changes its sum.
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <poll.h>
enum { WORDS = 1 << 16 };
static uint64_t words[WORDS];
__attribute__((noinline)) static uint64_t go_through(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < WORDS; i++)
        sum += words[i];
    return sum;
}
int main(void)
{
    struct pollfd input = {0, POLLIN, 0};
    for (int i = 0; i < WORDS; i++)
        words[i] = (uint64_t)i * i;
    const uint64_t right = go_through();
    puts("ready");
    fflush(stdout);
    for (int round = 0; ; round++) {
        if (go_through() != right)
            return 3;
        if (round % 1000 == 0 && poll(&input, 1, 0) > 0)
            return 0;
    }
}
"""
WORDS = 1 << 16
FORBIDDING = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
/* Runs a command that may not call ptrace. */
int main(int argc, char **argv)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    (void)argc;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
        return 1;
    execv(argv[1], argv + 1);
    return 2;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("streaming"), PROGRAM, "-O1", "-fno-tree-vectorize")


@pytest.fixture
def target(program: Path) -> Iterator[subprocess.Popen[str]]:
    with running(program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def is_unharmed(process: subprocess.Popen[str]) -> bool:
    """Whether it ends by itself, having found its sum right each time."""
    process.communicate("end\n")
    return process.returncode == 0


def observed(
    pid: int, folder: Path, *options: str, under: tuple[str, ...] = (), until: type | None = None
) -> Recording:
    """Observe a process until a record of this kind has come, or for a short time."""
    path = folder / "a.mem"
    for seconds in (2, 4, 8, 16, 32, 64, 128):
        command = [*under, *MEMSAMPD, "attach", str(pid), "--no-listen", "-f", "-o", str(path)]
        command += ["--duration", str(seconds), *options]
        subprocess.run(command, check=True, capture_output=True, text=True)
        found = read_recording(path)
        if until is None or any(isinstance(event, until) for event in found.events):
            return found
    raise AssertionError(f"no {until}")


def traced(log: Path) -> tuple[str, ...]:
    """Have a command's calls told that would trace a process, and that a replica is made with."""
    calls = "trace=ptrace,userfaultfd,kill,tgkill"
    return (tool("strace", "strace"), "-f", "-qq", "-o", str(log), "-e", calls)


@pytest.mark.parametrize(
    ("stops_nothing", "why"),
    [
        (("--accesses", "watchpoints"), "watchpoints are wanted"),
        (("--max-stop", "0"), "--max-stop 0"),
    ],
)
def test_no_ptrace_call_is_made(
    stops_nothing: tuple[str, str], why: str, target: subprocess.Popen[str], tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    found = observed(target.pid, tmp_path, *stops_nothing, under=traced(log), until=BurstRecord)
    assert found.header.backend["accesses"] == "watchpoints"
    assert why in found.header.config["accesses_why"]
    calls = log.read_text()
    assert "ptrace(" not in calls
    assert "userfaultfd(" not in calls
    assert f"kill({target.pid}" not in calls
    bursts = [event for event in found.events if isinstance(event, BurstRecord)]
    assert all(event.cost.stops == 0 == event.cost.stop_seconds for event in bursts)
    assert is_unharmed(target)


def test_what_is_looked_for_would_have_been_seen(
    target: subprocess.Popen[str], tmp_path: Path
) -> None:
    """A replica does not get on with strace: it is called for, and that is all."""
    log = tmp_path / "calls"

    def is_seen(seconds: int) -> bool:
        command = [*traced(log), *MEMSAMPD, "attach", str(target.pid), "--no-listen"]
        command += ["--accesses", "bursts", "--duration", str(seconds)]
        subprocess.run(command, check=False, capture_output=True)
        return "userfaultfd(" in log.read_text()

    assert any(is_seen(seconds) for seconds in (1, 3, 9, 27, 81))
    assert is_unharmed(target)


def test_watchpoints_where_ptrace_is_forbidden(
    target: subprocess.Popen[str], tmp_path: Path
) -> None:
    forbidding = compile_c(tmp_path, FORBIDDING)
    found = observed(target.pid, tmp_path, under=(str(forbidding),), until=BurstRecord)
    assert found.header.backend["accesses"] == "watchpoints"
    assert "ptrace is refused" in found.header.config["accesses_why"]
    command = [str(forbidding), *MEMSAMPD, "attach", str(target.pid), "--no-listen"]
    command += ["--accesses", "bursts"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "ptrace is refused" in refused.stderr
    assert "--accesses watchpoints" in refused.stderr
    assert is_unharmed(target)
    started, run = tmp_path / "started", [str(forbidding), *MEMSAMPD, "run", "--no-listen"]
    for option, status in (("--accesses=bursts", 1), ("--no-watchpoints", 1), ("--seed=1", 0)):
        command = [*run, option, "--", "touch", str(started)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, started.exists()) == (status, status == 0), done.stderr


def test_what_is_told_of_a_loop(target: subprocess.Popen[str], tmp_path: Path) -> None:
    found = observed(target.pid, tmp_path, "--accesses", "watchpoints", until=WatchRecord)
    watches = [event for event in found.events if isinstance(event, WatchRecord)]
    assert all(event.resolution_seconds > 0 for event in watches)
    estimator = Estimator(np.array([4096, 64 << 20]), 64)
    for event in found.events:
        estimator.add(event)
    estimator.finish()
    curve = estimator.estimate().curves["lru"]
    # One access in eight is the first of a line, and all lines return.
    assert curve.low[0] <= 1 / 8 <= curve.high[0]
    assert curve.low[1] <= 0.01


def test_a_pmu_chooses_lines(
    target: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A breakpoint in the place of PEBS: it tells the address of an access, too."""
    with closing(WalkSource(target.pid, random.Random(1))) as source:
        word = int(walk(source, target.pid).address[50])
    loads = HardwareEvent("loads", _core.PERF_TYPE_BREAKPOINT, 0, word, 8, bp_type=3)
    trials = PmuTrials(addresses=(Trial(loads, ""),))
    monkeypatch.setattr("memsampd.daemon.surroundings.try_pmu", lambda cpu: trials)
    monkeypatch.setattr("memsampd.daemon.composition.SAMPLED_PERIOD", 100)
    path = tmp_path / "a.mem"
    offered: list[OpenLine] = []
    ordered: list[WatchOrder] = []
    offer, start = WatchPlan.offer_sampled, Watchpoints.start

    def note_offer(plan: WatchPlan, line: OpenLine, *rest: int) -> None:
        offered.append(line)
        offer(plan, line, *rest)

    def note_start(points: Watchpoints, order: WatchOrder, tids: Sequence[int] = ()) -> None:
        ordered.append(order)
        start(points, order, tids)  # refused: the stand-in has one of the four registers

    monkeypatch.setattr(WatchPlan, "offer_sampled", note_offer)
    monkeypatch.setattr(Watchpoints, "start", note_start)
    # All that this process has used before counts as its own CPU time.
    config = SessionConfig(accesses="watchpoints", own_cpu_share=1e6, budget_share=0.2)
    give_up = time.monotonic() + PATIENCE_SECONDS
    with attached(target.pid, config, OutputConfig(path)) as session:
        while not any(word in order.addresses for order in ordered):
            assert time.monotonic() < give_up, len(offered)
            time.sleep(0.05)
            session.step()
        session.finish()
    assert read_recording(path).header.backend["lines"] == "watchpoints, pmu-accesses"
    assert offered
    assert all(word in line.words and len(line.words) == 4 for line in offered)
    assert all(each // 64 == word // 64 for line in offered for each in line.words)
    assert is_unharmed(target)


def walk(source: WalkSource, pid: int) -> Burst:
    """A walk of more than a few accesses."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while len(burst := patiently(lambda: source.capture(BurstRequest(pid, 1000)))) < 100:
        assert time.monotonic() < give_up
    return burst


def test_walks_see_what_the_loop_does(target: subprocess.Popen[str]) -> None:
    before = descriptors()
    with closing(WalkSource(target.pid, random.Random(1))) as source:
        burst = walk(source, target.pid)
    assert descriptors() == before
    steps = np.diff(burst.address.astype(np.int64))
    # Word after word; from the last one back to the first, by way of the stack.
    assert np.mean(steps == 8) > 0.9
    assert set(burst.size_bytes[1:][steps == 8].tolist()) == {8}
    assert is_unharmed(target)


def test_registers_alone_tell_a_loop(
    target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Yama refuses: its memory cannot be read, the files that are mapped can."""
    monkeypatch.setattr(RunningMemory, "begin", lambda memory: None)
    with closing(WalkSource(target.pid, random.Random(1))) as source:
        burst = walk(source, target.pid)
    steps = np.diff(burst.address.astype(np.int64))
    assert np.mean(steps == 8) > 0.9


def test_registers_advance_as_the_rows_do(target: subprocess.Popen[str]) -> None:
    with closing(WalkSource(target.pid, random.Random(1))) as source:
        for _ in tries():
            burst = walk(source, target.pid)
            if np.all(np.diff(burst.address.astype(np.int64)) == 8):
                break  # it does not come to the end of the array
    advance = (burst.stretch[2] - burst.stretch[0]).view(np.int64)
    steady = int(burst.address[-1]) - int(burst.address[0])
    assert burst.stretch.shape == (3, 16)
    assert burst.stretch_shares[0] == 0
    assert any(abs(int(each) - steady) <= 8 for each in advance.tolist())


def test_the_choice(target: subprocess.Popen[str]) -> None:
    refusal = TargetError("yama says no", "sysctl")

    def chosen(config: SessionConfig, refusal: TargetError | None, pid: int = target.pid) -> str:
        return choose_accesses(pid, config, refusal, ReplicaTrial()).source

    assert ptrace_refusal() == ""
    assert chosen(SessionConfig(), None) == "bursts"
    assert chosen(SessionConfig(), refusal) == "watchpoints"
    assert chosen(SessionConfig(accesses="watchpoints"), None) == "watchpoints"
    with pytest.raises(TargetError, match="yama"):
        chosen(SessionConfig(accesses="bursts"), refusal)
    for forbidden in (
        SessionConfig(watches=False),
        SessionConfig(watches=False, max_stop_seconds=0),
    ):
        with pytest.raises(CapabilityError, match="--no-watchpoints"):
            chosen(forbidden, refusal)
    with pytest.raises(CapabilityError, match="no replica"):
        chosen(SessionConfig(accesses="bursts"), None, os.getpid() + (1 << 22))


def test_a_replica_is_tried_until_one_was_made(target: subprocess.Popen[str]) -> None:
    trial = ReplicaTrial()
    nobody = os.getpid() + (1 << 22)
    assert "no replica can be made" in trial.refusal(nobody, 0.005)
    assert trial.refusal(target.pid, 0.005) == ""
    assert trial.refusal(nobody, 0.005) == ""  # was not tried
