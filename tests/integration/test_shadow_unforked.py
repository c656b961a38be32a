"""Memory that a program keeps from its children: shadows have it, the program stays as it was."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import shadowing

from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import AddressSpace, read_maps
from memsampd.sampler.records import BurstEnd, BurstRequest
from memsampd.sampler.shadow.site import InjectionSite, SiteFinder
from memsampd.sampler.shadow.snapshots import Snapshots
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor
from memsampd.sampler.shadow.unforked import touched_pages

PAGE_BYTES = 4096
DATA_PAGES = 64

# Counts in memory that children lack, by code that they lack; the sum of all counts must be that of
# all rounds. A child looks in the end whether it lacks them.
PROGRAM = """
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t done;
static void finish(int number) { done = number; }
static void *area(size_t bytes, int protection) {
    void *p = mmap(0, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (madvise(p, bytes, MADV_DONTFORK) != 0) abort();
    printf("%lx ", (unsigned long)p);
    return p;
}
int main(int argc, char **argv) {
    const uint8_t bytes[] = {0x8b, 0x07, 0xff, 0xc0, 0x89, 0x07, 0xc3}; /* ++*(int *)rdi */
    size_t more = strtoul(argv[1], 0, 0);
    unsigned char seen;
    uint32_t *data = area(64 << 12, PROT_READ | PROT_WRITE);
    uint32_t *constant = area(16 << 12, PROT_READ | PROT_WRITE);
    area(4 << 12, PROT_NONE);
    uint8_t *code = area(1 << 12, PROT_READ | PROT_WRITE | PROT_EXEC);
    area(8 << 12, PROT_READ | PROT_WRITE); /* never touched */
    memset(area(more + 4096, PROT_READ | PROT_WRITE), 1, more);
    memcpy(code, bytes, sizeof bytes);
    mprotect(code, 4096, PROT_READ | PROT_EXEC);
    for (unsigned i = 0; i < 16 << 10; i++)
        if (i >> 10 & 1) constant[i] = i * 2654435761u;
    mprotect(constant, 16 << 12, PROT_READ);
    signal(SIGTERM, finish);
    puts("");
    fflush(stdout);
    uint64_t rounds = 0, sum = 0, wrong = 0;
    for (; !done; rounds++) {
        unsigned i = (unsigned)(rounds * 7 % (64 << 10)), j = (unsigned)(rounds % (16 << 10));
        ((void (*)(uint32_t *))code)(&data[i]);
        wrong += constant[j] != (j >> 10 & 1 ? j * 2654435761u : 0);
    }
    for (unsigned i = 0; i < 64 << 10; i++) sum += data[i];
    pid_t child = fork();
    int status;
    if (child == 0)
        _exit(mincore(data, 4096, &seen) == 0 || mincore(code, 4096, &seen) == 0);
    waitpid(child, &status, 0);
    puts(sum == rounds && wrong == 0 && status == 0 ? "right" : "wrong");
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shadowing.compile_c(tmp_path_factory.mktemp("unforked"), PROGRAM)


@contextmanager
def counting(
    program: Path, more_bytes: int = 0
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The program and its areas; in the end it must have counted right, and its child lack them."""
    with shadowing.running(program, str(more_bytes)) as process:
        assert process.stdout is not None
        areas = [int(word, 16) for word in process.stdout.readline().split()]
        flags = unforked_areas(process.pid)
        assert all(any(start <= area < end for start, end in flags) for area in areas)
        yield process, areas
        assert unforked_areas(process.pid) == flags
        assert shadowing.wait_until_clean(process.pid) == []
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "right\n"


def unforked_areas(pid: int) -> set[tuple[int, int]]:
    """The areas that the kernel says it will not copy."""
    found, area = set(), (0, 0)
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            area = int(match.group(1), 16), int(match.group(2), 16)
        elif line.startswith("VmFlags:") and "dc" in line.split():
            found.add(area)
    return found


def read_memory(pid: int, address: int, size_bytes: int) -> bytes:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size_bytes)


def test_translated_bursts_equal_stepped_ones(program: Path) -> None:
    translating, stepping = TranslatingExecutor(), SteppingExecutor()
    with counting(program) as (process, areas):
        data, constant, _, code, *_ = areas
        source = ShadowSource(process.pid, translating)
        for _ in range(4):
            request = BurstRequest(process.pid, 5000, 30.0)
            first, second = source.capture_by(request, (translating, stepping))
            assert first.end is second.end is BurstEnd.FULL
            for name in ("ip", "address", "size_bytes", "is_write"):
                assert np.array_equal(getattr(first, name), getattr(second, name))
            assert ((first.ip >= code) & (first.ip < code + PAGE_BYTES)).any()
            for area, pages in ((data, DATA_PAGES), (constant, 16)):
                inside = (first.address >= area) & (first.address < area + pages * PAGE_BYTES)
                assert inside.sum() > 500
        source.close()


def test_every_shadow_has_contents_and_permissions(program: Path) -> None:
    with counting(program) as (process, areas):
        data, constant, locked, code, untouched, _ = areas
        snapshots = Snapshots(process.pid)
        for round_ in range(3):
            snapshot = snapshots.take(process.pid, 3, 5.0)
            assert (snapshot.stops > 1) == (round_ == 0), "only the first had to learn"
            contents = set()
            for shadow in snapshot.shadows:
                assert shadow.absent == ((locked, locked + 4 * PAGE_BYTES),)
                theirs, ours = read_maps(shadow.pid), read_maps(process.pid)
                for area in (data, constant, code, untouched):
                    there, here = theirs.find(area), ours.find(area)
                    assert there is not None
                    assert here is not None
                    assert there.perms == here.perms
                index = np.arange(16 << 10, dtype=np.uint32)
                expected = np.where(index >> 10 & 1, index * np.uint32(2654435761), 0)
                got = read_memory(shadow.pid, constant, 16 * PAGE_BYTES)
                assert np.array_equal(np.frombuffer(got, np.uint32), expected)
                contents.add(read_memory(shadow.pid, data, DATA_PAGES * PAGE_BYTES))
                assert not any(read_memory(shadow.pid, untouched, 8 * PAGE_BYTES))
            assert len(contents) == 1, "twins differ"
            assert any(contents.pop())
            for shadow in snapshot.shadows:
                snapshots.end(shadow)
        touched = touched_pages(process.pid, [(untouched, untouched + 8 * PAGE_BYTES, 3)])
        assert not touched.any(), "the copy touched memory that the target never did"
        snapshots.close()


# Has an area, or not, as a word in its memory says; argv[1]: keeps others from its children.
TOGGLE = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
static volatile int wanted, there;
static char *map(void *at, int protection, int flags) {
    return mmap(at, 4 << 12, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}
int main(int argc, char **argv) {
    char *area = map(0, PROT_READ | PROT_WRITE, 0);
    munmap(area, 4 << 12);
    char *locked = area - (1 << 20), *used = area - (2 << 20);
    if (atoi(argv[1])) {
        madvise(map(locked, PROT_NONE, MAP_FIXED), 4 << 12, MADV_DONTFORK);
        madvise(map(used, PROT_READ, MAP_FIXED), 4 << 12, MADV_DONTFORK);
    }
    printf("%lx %lx %lx\\n", (unsigned long)&wanted, (unsigned long)area, (unsigned long)locked);
    fflush(stdout);
    for (;; there = wanted) {
        while (wanted == there) __builtin_ia32_pause();
        if (wanted) map(area, PROT_READ | PROT_WRITE, MAP_FIXED)[0] = 1;
        else munmap(area, 4 << 12);
    }
}
"""


@pytest.mark.parametrize("keeps_other_memory", [False, True])
def test_what_comes_and_goes_was_not_kept_back(
    keeps_other_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has the area whenever it is looked at, but not at the stop."""
    program = shadowing.compile_c(tmp_path, TOGGLE)
    with shadowing.running(program, str(int(keeps_other_memory))) as process:
        assert process.stdout is not None
        wanted, area, locked = (int(word, 16) for word in process.stdout.readline().split())

        def toggle(is_wanted: bool) -> None:
            with Path(f"/proc/{process.pid}/mem").open("wb", buffering=0) as memory:
                memory.seek(wanted)
                memory.write(int(is_wanted).to_bytes(4, "little"))
            while (read_maps(process.pid).find(area) is not None) != is_wanted:
                assert process.poll() is None

        snapshots = Snapshots(process.pid)
        learned = snapshots.take(process.pid, 1, 60.0)
        assert (learned.stops > 1) == keeps_other_memory
        for shadow in learned.shadows:
            snapshots.end(shadow)
        find_really = SiteFinder.find

        def find_before_it_goes(finder: SiteFinder) -> InjectionSite:
            toggle(True)
            site = find_really(finder)
            toggle(False)
            return site

        def read_after_it_came(pid: int, proc: Path = PROC) -> AddressSpace:
            if pid == process.pid:
                toggle(True)
            return read_maps(pid, proc)

        with monkeypatch.context() as patch:
            patch.setattr(SiteFinder, "find", find_before_it_goes)
            patch.setattr("memsampd.sampler.shadow.snapshots.read_maps", read_after_it_came)
            snapshot = snapshots.take(process.pid, 2, 60.0)
        assert snapshot.stops == 1
        kept_back = ((locked, locked + 4 * PAGE_BYTES),) if keeps_other_memory else ()
        for shadow in snapshot.shadows:
            assert shadow.absent == kept_back
            assert read_maps(shadow.pid).find(area) is None
        for shadow in snapshot.shadows:
            snapshots.end(shadow)
        snapshots.close()


def test_a_long_copy_is_refused(program: Path) -> None:
    with counting(program, more_bytes=64 << 20) as (process, _):
        snapshots = Snapshots(process.pid, max_stop_seconds=0.015)
        with pytest.raises(CaptureError, match="MADV_DONTFORK") as refused:
            snapshots.take(process.pid, 1, 5.0)
        assert refused.value.reason == "stop-too-long"
        snapshots.close()
