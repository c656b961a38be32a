"""Pages of every kind of memory: as the target has them, or a clean end. It is left unchanged."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tracees import address_of, compile_c, running

from memsampd.sampler.process.identity import PROC
from memsampd.sampler.replica.comparison import HeldReplica, Run, held_replica

TOUCHING = Path(__file__).parents[1] / "support" / "touching.c"
CASES = re.findall(
    r"\w+", TOUCHING.read_text().partition("cases[])(void) = {")[2].partition("}")[0]
)
EVENTS = 99  # has the program look for events of its own userfaultfd
ENOUGH = 20_000
ENOUGH_FOR_ALL = 200_000  # pages that are accessed once
PAGES_MOST, READ_AT_ONCE = 32_768, 512  # in a burst, and more by the last miss
OTHER_PAGES = 1000  # of code and stack, and read ahead in vain


@dataclass(frozen=True)
class Expected:
    """What a case loads, as the program tells by addresses, and how it ends."""

    values: list[int]
    end: str = "syscall"
    number: int | None = None


SEGFAULT = Expected([1], "fault", signal.SIGSEGV)
EXPECTED = {
    "sparse_reads": Expected([0] * 300),
    "sparse_writes": Expected([(i + 1) % 256 for i in range(300)]),
    "stack_pages": Expected(list(range(3, 23))),
    "stores_to_readable": SEGFAULT,
    "loads_from_none": SEGFAULT,
    "loads_from_nowhere": SEGFAULT,
    "loads_from_odd_address": SEGFAULT,
    "divides": Expected([1], "fault", signal.SIGFPE),
    "readable_loads": Expected([21, 22]),
    "shared_loads": Expected([31, 32, 33, 34]),
    "shared_new": Expected([1], "unreadable"),
    "file_loads": Expected([41, 41, 12]),
    "file_new": Expected([1], "unreadable"),
    "file_shared": Expected([9, 41]),
    "huge_loads": Expected([4099 * i % 251 for i in range(512)]),
    "unforked": Expected([51, 52]),
    "wiped": Expected([61, 62]),
    "half_store": SEGFAULT,
    "half_load": Expected([1, 0]),
    "many_areas": Expected([i * 3571 % 6000 % 101 for i in range(100)], "fault", signal.SIGSEGV),
}


class Target:
    """The program, held while one of its cases is tried in replicas."""

    def __init__(self, pid: int, line: str, use_ip: int) -> None:
        words = line.split()
        self.pid, self.use_ip = pid, use_ip
        self.table, self._go, self._events = (int(word, 16) for word in words[:3])
        self.lends = int(words[3]) >= 0

    def _write(self, address: int, value: int) -> None:
        memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR)
        try:
            os.pwrite(memory, value.to_bytes(8, "little"), address)
        finally:
            os.close(memory)

    def read(self, address: int) -> int:
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            return int.from_bytes(os.pread(memory.fileno(), 8, address), "little")

    @contextmanager
    def going(self, replica: HeldReplica, case: str) -> Iterator[None]:
        """Held before a case, which it never comes to itself."""
        with replica.holding(self.pid, 60):
            self._write(self._go, CASES.index(case))
            try:
                yield
            finally:
                self._write(self._go, 0)

    def events(self) -> int:
        """How many events of its userfaultfd wait for it."""
        self._write(self._go, EVENTS)
        while (events := self.read(self._events)) == 0:
            assert (PROC / str(self.pid)).exists()
        self._write(self._events, 0)
        return events - 100

    def footprint(self) -> tuple[list[str], str]:
        """Its faults and its memory, whoever shares it, and whatever is written back meanwhile."""
        fields = (PROC / str(self.pid) / "stat").read_text().rpartition(")")[2].split()
        rollup = (PROC / str(self.pid) / "smaps_rollup").read_text().partition("\n")[2]
        others = ("Pss", "Referenced", "Shared_", "Private_")
        kept = [line for line in rollup.splitlines() if not line.startswith(others)]
        return fields[7:11], "\n".join(kept)

    def used(self, run: Run) -> list[int]:
        """What the program says that it loaded."""
        rows = run.rows
        addresses = rows.address[rows.ip == self.use_ip]
        return [(address - self.table) // 8 for address in addresses.tolist()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    program = compile_c(tmp_path_factory.mktemp("touching"), TOUCHING.read_text(), "-no-pie")
    with program.open("rb") as file:
        os.fsync(file.fileno())  # else its pages become clean when the kernel has written them
    return program, address_of(program, "use_ip")


@pytest.fixture(
    scope="module",
    params=[(True, True), (False, True), (True, False)],
    ids=["queried", "listed", "copied"],
)
def both(
    program: tuple[Path, int],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Target, HeldReplica]]:
    file = tmp_path_factory.mktemp("touching") / "file"
    with running(program[0], file) as process:
        assert process.stdout is not None
        target = Target(process.pid, process.stdout.readline(), program[1])
        can_query, may_keep = request.param
        with held_replica(process.pid, can_query=can_query, may_keep=may_keep) as replica:
            yield target, replica
        assert process.poll() is None


def check(target: Target, replica: HeldReplica, case: str, expected: Expected) -> None:
    with target.going(replica, case):
        before = target.footprint()
        run = replica.translated(ENOUGH)
        stepped = replica.stepped(ENOUGH)
        assert target.footprint() == before
    assert target.used(run) == expected.values
    assert run.end == expected.end
    assert expected.number is None or run.number == expected.number
    assert target.used(stepped) == expected.values
    assert stepped.end in (expected.end, "fault")
    for name in ("ip", "address", "size_bytes", "is_write"):
        assert getattr(run.rows, name).tolist() == getattr(stepped.rows, name).tolist()


@pytest.mark.parametrize("case", EXPECTED)
def test_memory_is_what_the_target_has(case: str, both: tuple[Target, HeldReplica]) -> None:
    check(*both, case, EXPECTED[case])


def test_a_stack_grows_as_far_as_it_may(
    program: tuple[Path, int], both: tuple[Target, HeldReplica], tmp_path: Path
) -> None:
    target, replica = both
    # Without the kernel's answer on single areas nothing is known of the room below it.
    grows = Expected([1]) if replica.features()["can_query"] else Expected([], "fault")
    check(target, replica, "stack_growth", grows)
    limited: list[str | Path] = [
        "prlimit",
        f"--stack={512 << 10}",
        program[0],
        str(tmp_path / "file"),
    ]
    with running(*limited) as process:
        assert process.stdout is not None
        target = Target(process.pid, process.stdout.readline(), program[1])
        with held_replica(process.pid) as little:
            check(target, little, "stack_growth", Expected([], "fault"))


@pytest.mark.parametrize("case", ["jumps_nowhere", "traps", "undefined"])
def test_what_cannot_go_on_ends_cleanly(case: str, both: tuple[Target, HeldReplica]) -> None:
    target, replica = both
    with target.going(replica, case):
        run = replica.translated(ENOUGH)
    assert target.used(run) == [1]
    assert run.end in ("fault", "unsupported", "unreadable")


def test_pages_of_which_there_are_too_many_end_a_burst(
    program: tuple[Path, int], both: tuple[Target, HeldReplica]
) -> None:
    """As many as may be in one burst; and fewer, where the table has many of earlier ones."""
    target, replica = both
    step_ip = address_of(program[0], "step_ip")

    def stepped_through(case: str, end: str) -> int:
        with target.going(replica, case):
            run = replica.translated(ENOUGH_FOR_ALL)
        assert run.end == end
        pages = run.rows.address[run.rows.ip == step_ip] // 4096
        assert (np.diff(pages) == 1).all()
        return len(pages)

    alone = stepped_through("all_of_vast", "full")
    assert PAGES_MOST - OTHER_PAGES < alone < PAGES_MOST + READ_AT_ONCE
    stepped_through("readable_loads", "syscall")  # now those are old, and half are forgotten
    assert stepped_through("half_of_vast", "syscall") == 20_000
    assert 0 < stepped_through("all_of_vast", "full") < alone - OTHER_PAGES


def test_memory_with_a_manager_of_its_own_is_left_to_it(
    program: tuple[Path, int], tmp_path: Path
) -> None:
    """What is not present need not be zero, and no event must come of our looking."""
    with running(program[0], tmp_path / "file", "lends") as process:
        assert process.stdout is not None
        target = Target(process.pid, process.stdout.readline(), program[1])
        if not target.lends:
            pytest.skip("no userfaultfd here")
        with held_replica(process.pid) as replica:
            check(target, replica, "lent", Expected([1], "unreadable"))
            check(target, replica, "lent_given", Expected([5]))
        assert target.events() == 0
        assert process.poll() is None
