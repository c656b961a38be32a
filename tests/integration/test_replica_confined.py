"""Targets with little memory, and with CPUs of their own: what is theirs is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from groups import control_group, join
from tracees import compile_c, observed, running, traces_left
from watchful import OBSERVER

from memsampd.sampler.process.identity import read_stat

RESIDENT_BYTES = 48 << 20
# Touches at random so much memory, once there is a line of input.
ROAMING = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(int argc, char **argv)
{
    (void)argc;
    size_t size = (size_t)atol(argv[1]), at = 1;
    getchar();
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, size, MADV_NOHUGEPAGE); /* the kernel joins pages when it likes */
    memset(memory, 1, size);
    puts("ready");
    fflush(stdout);
    for (;;) {
        at = at * 6364136223846793005u + 1442695040888963407u;
        memory[(at >> 20) % size]++;
    }
}
"""


@pytest.fixture(scope="module")
def roaming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("roaming"), ROAMING)


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"


class Memory:
    """What a group says of its memory."""

    def __init__(self, group: Path, version: int) -> None:
        self._group, self._is_first = group, version == 1

    def used_bytes(self) -> int:
        return self._read("memory.usage_in_bytes" if self._is_first else "memory.current")

    def peak_bytes(self) -> int:
        """0 where the kernel does not tell (version 2 before Linux 5.19)."""
        name = "memory.max_usage_in_bytes" if self._is_first else "memory.peak"
        return self._read(name) if (self._group / name).exists() else 0

    def limit(self, limit_bytes: int) -> None:
        """Whoever is killed for it takes all others along, as in containers."""
        name = "memory.limit_in_bytes" if self._is_first else "memory.max"
        (self._group / name).write_text(str(limit_bytes))
        if not self._is_first:
            (self._group / "memory.oom.group").write_text("1")

    def complaints(self) -> dict[str, int]:
        """How often the limit was reached, and what came of it."""
        if self._is_first:
            return {"failcnt": self._read("memory.failcnt")}
        lines = (self._group / "memory.events").read_text().splitlines()
        events = {name: int(count) for name, count in (line.split() for line in lines)}
        return {name: events.get(name, 0) for name in ("max", "oom", "oom_kill", "oom_group_kill")}

    def _read(self, name: str) -> int:
        return int((self._group / name).read_text())


@pytest.mark.parametrize("version", [1, 2])
def test_a_memory_limit_close_to_what_it_has_is_enough(version: int, roaming: Path) -> None:
    with (
        control_group(version, "memory") as group,
        running(roaming, str(RESIDENT_BYTES)) as process,
    ):
        join(group, process.pid)
        start(process)
        memory = Memory(group, version)
        # Each CPU takes pages for a group in advance, 64 at a time: 256 KiB.
        most_bytes = (os.cpu_count() or 1) * (256 << 10) + (64 << 10)
        memory.limit(memory.used_bytes() + 2 * most_bytes)
        before = memory.peak_bytes()
        with observed(process.pid, max_accesses=50_000) as tally:
            tally.wait(lambda: tally.bursts >= 20)
        assert set(memory.complaints().values()) == {0}
        # What it used itself is the most that there was.
        assert memory.peak_bytes() <= before + most_bytes
        assert not read_stat(process.pid).is_dead


def two_cpus() -> tuple[int, int]:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("there is one CPU only")
    return cpus[0], cpus[-1]


@contextmanager
def kept_to(cpu: int) -> Iterator[None]:
    """This thread, and those that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def test_it_stays_on_its_cpu_and_we_on_ours(roaming: Path) -> None:
    ours, its = two_cpus()
    with running(roaming, str(1 << 20)) as process, kept_to(ours):
        os.sched_setaffinity(process.pid, {its})
        start(process)
        with observed(process.pid, max_accesses=50_000) as tally:
            for _ in range(20):
                bursts = tally.bursts
                tally.wait(lambda bursts=bursts: tally.bursts > bursts)  # type: ignore[misc]
                assert os.sched_getaffinity(process.pid) == {its}
        assert os.sched_getaffinity(0) == {ours}
        assert traces_left(process.pid) == []


def test_it_can_be_moved_while_it_is_observed(roaming: Path) -> None:
    with running(roaming, str(1 << 20)) as process:
        start(process)
        with observed(process.pid, max_accesses=50_000) as tally:
            for number in range(20):
                cpu = two_cpus()[number % 2]
                os.sched_setaffinity(process.pid, {cpu})
                bursts = tally.bursts
                tally.wait(lambda bursts=bursts: tally.bursts > bursts)  # type: ignore[misc]
                assert os.sched_getaffinity(process.pid) == {cpu}
        assert traces_left(process.pid) == []


@contextmanager
def cpuset(version: int, cpu: int, name: str) -> Iterator[Path]:
    with control_group(version, "cpuset", name) as group:
        (group / "cpuset.cpus").write_text(str(cpu))
        if version == 1:
            (group / "cpuset.mems").write_text((group.parent / "cpuset.mems").read_text())
        yield group


@pytest.mark.parametrize("version", [1, 2])
def test_cpusets_that_have_no_cpu_in_common(version: int, roaming: Path) -> None:
    """No thread of ours may go where the target is."""
    ours, its = two_cpus()
    enter = 'echo $$ >"$0"/cgroup.procs && exec "$@"'
    with (
        cpuset(version, ours, "-ours") as our_group,
        cpuset(version, its, "-its") as its_group,
        running(roaming, str(1 << 20)) as process,
    ):
        join(its_group, process.pid)
        start(process)
        observer = [sys.executable, "-c", OBSERVER, str(process.pid), "20"]
        command = ["sh", "-c", enter, str(our_group), *observer]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
        assert os.sched_getaffinity(process.pid) == {its}
        assert traces_left(process.pid) == []
        assert not read_stat(process.pid).is_dead
