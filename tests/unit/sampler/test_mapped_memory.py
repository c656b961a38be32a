"""How much memory a process has and is given: of real ones, and of files that are made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memsampd.sampler.process.mapped import PAGE_BYTES, MappedMemory, MemoryUse

PAGES = 2000
PROGRAM = f"""
import mmap, sys
held = []
for line in sys.stdin:
    if line == "take\\n":
        held.append(mmap.mmap(-1, {PAGES * PAGE_BYTES}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for page in range({PAGES}):
            held[-1][page * {PAGE_BYTES}] = 1
    elif line == "give\\n":
        held.pop().close()
    print("done", flush=True)
"""
Order = Callable[..., None]


@pytest.fixture
def taker() -> Iterator[tuple[int, Order]]:
    """A process that takes and gives back memory when it is told to."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def order(*words: str) -> None:
            for word in words:
                stdin.write(f"{word}\n".encode())
                stdin.flush()
                assert stdout.readline() == b"done\n"

        order("nothing")
        yield process.pid, order


def looked(memory: MappedMemory) -> MemoryUse:
    use = memory.since()
    assert use is not None
    return use


def test_all_is_new_at_first_then_what_is_taken(taker: tuple[int, Order]) -> None:
    pid, order = taker
    memory = MappedMemory(pid)
    first = looked(memory)
    assert first.mapped_bytes == first.resident_bytes > 0
    order("take")
    second = looked(memory)
    assert second.mapped_bytes >= PAGES * PAGE_BYTES
    assert second.resident_bytes >= first.resident_bytes + (PAGES - 500) * PAGE_BYTES
    memory.begin_anew()
    again = looked(memory)
    assert again.mapped_bytes == again.resident_bytes >= PAGES * PAGE_BYTES


def test_what_is_given_back_meanwhile_is_counted(taker: tuple[int, Order]) -> None:
    pid, order = taker
    memory = MappedMemory(pid)
    order("take", "give")
    before = looked(memory)
    order("take", "give", "take", "give")
    after = looked(memory)
    assert after.mapped_bytes >= 2 * PAGES * PAGE_BYTES
    assert after.resident_bytes <= before.resident_bytes + 500 * PAGE_BYTES


def test_what_was_taken_before_the_end_is_known_until_the_parent_asks(
    taker: tuple[int, Order],
) -> None:
    pid, order = taker
    memory = MappedMemory(pid)
    before = looked(memory)
    order("take")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    last = looked(memory)
    assert last.mapped_bytes >= PAGES * PAGE_BYTES
    assert last.resident_bytes >= before.resident_bytes + PAGES * PAGE_BYTES
    assert looked(memory).mapped_bytes == 0
    assert MappedMemory(pid).since() is None
    os.waitpid(pid, 0)
    assert memory.since() is None


class MadeUp:
    """A proc file system with one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "7"
        self.folder.mkdir()
        self.tell()

    def tell(
        self, pages: int = 100, faults: int = 50, space_bytes: int = 1 << 24, huge_kib: int = 0
    ) -> None:
        stat = f"7 (a) b) S 1 7 7 0 -1 0 {faults} 9 3 9 150 25 0 0 20 0 1 0 4711 {space_bytes} "
        (self.folder / "stat").write_text(f"{stat}{pages} 18446744073709551615 0 0\n")
        (self.folder / "status").write_text(f"Name:\ta\nHugetlbPages:\t{huge_kib:8d} kB\n")

    def map(self, path: str) -> None:
        (self.folder / "maps").write_text(
            f"7f0000000000-7f0000001000 rw-s 00000000 00:05 1  {path}\n"
        )


@pytest.fixture
def made_up(tmp_path: Path) -> MadeUp:
    made = MadeUp(tmp_path)
    made.map("/usr/bin/a")
    return made


def test_pages_of_files_come_several_at_a_fault(made_up: MadeUp, tmp_path: Path) -> None:
    memory = MappedMemory(7, 2, tmp_path)
    looked(memory)
    made_up.tell(pages=180, faults=55)
    assert looked(memory).mapped_bytes == 80 * PAGE_BYTES
    made_up.tell(pages=180, faults=95)
    assert looked(memory).mapped_bytes == 40 * PAGE_BYTES


def test_what_cpus_have_not_added_up_may_be_there(made_up: MadeUp, tmp_path: Path) -> None:
    few, many = MappedMemory(7, 1, tmp_path), MappedMemory(7, 64, tmp_path)
    assert looked(few).resident_bytes == (100 + 32) * PAGE_BYTES
    assert looked(many).resident_bytes == (100 + 4 * 128) * PAGE_BYTES


def test_huge_pages_count(made_up: MadeUp, tmp_path: Path) -> None:
    memory = MappedMemory(7, 1, tmp_path)
    looked(memory)
    made_up.tell(faults=51, huge_kib=2048)
    use = looked(memory)
    assert use.mapped_bytes == 2048 * 1024 + PAGE_BYTES
    assert use.resident_bytes == 2048 * 1024 + 132 * PAGE_BYTES


@pytest.mark.parametrize(
    ("path", "is_known"),
    [
        ("/dev/nvidia0", False),
        ("/dev/mem", False),
        ("/dev/dax0.0", False),
        ("/dev/shm/a", True),
        ("/dev/zero (deleted)", True),
        ("/dev/hugepages/a", True),
        ("/usr/lib/dev/a", True),
    ],
)
def test_memory_of_devices_is_not_known(
    made_up: MadeUp, tmp_path: Path, path: str, is_known: bool
) -> None:
    memory = MappedMemory(7, 1, tmp_path)
    assert memory.since() is not None
    made_up.map(path)
    assert memory.since() is not None  # it did not grow
    made_up.tell(space_bytes=1 << 25)
    assert (memory.since() is not None) == is_known
