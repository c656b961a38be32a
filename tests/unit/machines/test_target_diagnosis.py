"""What is to be expected of bursts of a process."""

from __future__ import annotations

import pytest

from memsampd.machines.findings import State
from memsampd.machines.target_diagnosis import bursts_finding, limits_finding
from memsampd.sampler.process.cgroup import CgroupLimits


@pytest.mark.parametrize(
    ("cpu_seconds", "sleeps", "words"),
    [
        (0.0, 0, "a burst waits until it runs"),
        (0.5, 0, "100% of a CPU and did not sleep: bursts of 200,000 accesses or more"),
        (0.25, 50, "50% of a CPU, 5 ms between two sleeps: bursts of 200,000 accesses or more"),
        (0.01, 1000, "some 10,000 accesses: a burst of 200,000 has to be put together from 20"),
    ],
)
def test_bursts_are_as_long_as_it_runs_between_sleeps(
    cpu_seconds: float, sleeps: int, words: str
) -> None:
    finding = bursts_finding(cpu_seconds, sleeps, 200_000, 0.005)
    assert words in finding.detail
    assert finding.detail.endswith("a thread is held for 5 ms at most in any 100")


@pytest.mark.parametrize(
    ("limits", "state", "words"),
    [
        (CgroupLimits(), State.OK, "no CPU quota, no limit of memory"),
        (CgroupLimits(0.5, 0.1, 0.0), State.OK, "0.5 CPUs at most, granted every 0.1 s; memsampd"),
        (CgroupLimits(0.5, 0.1, 0.3), State.LIMITED, "it had to wait in 30% of these periods"),
        (
            CgroupLimits(memory_bytes=1 << 30, memory_used_bytes=1 << 29),
            State.OK,
            "512 of 1024 MiB",
        ),
    ],
)
def test_limits_are_told_and_waits_are_a_warning(
    limits: CgroupLimits, state: State, words: str
) -> None:
    finding = limits_finding(limits)
    assert finding.state is state
    assert words in finding.detail
    assert bool(finding.remedy) is (state is State.LIMITED)
