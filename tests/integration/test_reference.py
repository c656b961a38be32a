"""The tracer of the exact references, on real programs; and the references that are kept."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tracees import compile_c

import make_references
from memsampd.models.exact import RUN_LINE_BITS
from reference import store, tracer
from reference.comparison import compare
from reference.programs import PROGRAMS, Program, copies_alike, environment
from reference.records import LINE_BYTES, Block, Stretch, accessed_lines
from reference.windows import (
    ERROR_SIZES_BYTES,
    FINE_SIZES_BYTES,
    REUSE_EDGES,
    SAMPLES_A_WINDOW,
    WINDOWS,
)

needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None or not tracer.LIBRARIES.exists(),
    reason="Debian's package 'valgrind' is not installed",
)

# One byte that the dynamic loader reads at start-up has another address in every run, of either
# tool. Anything much beyond is an error of ours.
RUN_TO_RUN = 3

# What the compiler makes of it is known: one instruction with memory operands a line.
PROGRAM = r"""
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    char *page = mmap((void *)0x10000000, 8192, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (fork() == 0) {
        __asm__ volatile("movb $1, 0x700(%0)" :: "r"(page) : "memory");
        _exit(0);
    }
    wait(0);
    __asm__ volatile(
        "movq 0x000(%0), %%rax\n\t"                 /* load */
        "movl %%eax, 0x100(%0)\n\t"                 /* store */
        "addw $1, 0x200(%0)\n\t"                    /* load, store */
        "lock addq $1, 0x300(%0)\n\t"               /* load, store */
        "lock cmpxchgb %%cl, 0x400(%0)\n\t"         /* load, store */
        "xchgq %%rcx, 0x500(%0)\n\t"                /* load, store */
        "prefetcht0 0x540(%0)\n\t"                  /* nothing */
        "movups 0x5f8(%0), %%xmm0\n\t"              /* load across two lines */
        "leaq 0x800(%0), %%rdi\n\t"
        "movl $17, %%ecx\n\t"
        "rep stosq\n\t"                             /* a store a line: three */
        "leaq 0x900(%0), %%rdi\n\t"
        "movl $1, %%ecx\n\t"
        "rep stosb\n\t"                             /* a store: it begins anew */
        "leaq 0x901(%0), %%rdi\n\t"
        "movl $1, %%ecx\n\t"
        "rep stosb\n\t"                             /* a store again */
        "rep stosb\n\t"                             /* nothing */
        "leaq 0xa20(%0), %%rsi\n\t"
        "leaq 0xb01(%0), %%rdi\n\t"
        "movl $64, %%ecx\n\t"
        "rep movsb\n\t"                             /* a load and a store, twice, not at once */
        "std\n\t"
        "leaq 0xc3c(%0), %%rdi\n\t"
        "movl $10, %%ecx\n\t"
        "rep stosq\n\t"                             /* across lines where it comes to them */
        "cld\n\t"
        "leaq 0xd00(%0), %%rdi\n\t"
        "movl $3, %%ecx\n\t"
        "repe scasq\n\t"                            /* an element each */
        :: "r"(page) : "rax", "rcx", "rsi", "rdi", "xmm0", "memory", "cc");
    return 0;
}
"""
EXPECTED = [
    (0x000, 8, "L"),
    (0x100, 4, "S"),
    (0x200, 2, "L"),
    (0x200, 2, "S"),
    (0x300, 8, "L"),
    (0x300, 8, "S"),
    (0x400, 1, "L"),
    (0x400, 1, "S"),
    (0x500, 8, "L"),
    (0x500, 8, "S"),
    (0x5F8, 16, "L"),
    (0x800, 8, "S"),
    (0x840, 8, "S"),
    (0x880, 8, "S"),
    (0x900, 1, "S"),
    (0x901, 1, "S"),
    (0xA20, 1, "L"),
    (0xB01, 1, "S"),
    (0xA40, 1, "L"),
    (0xB40, 1, "S"),
    (0xC3C, 8, "S"),
    (0xBFC, 8, "S"),
    (0xD00, 8, "L"),
    (0xD08, 8, "L"),
    (0xD10, 8, "L"),
]

# Prints where the string routines chosen by glibc lie, from a routine that has no variants.
ROUTINES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile fill)(void *, int, size_t) = memset;
static int (*volatile compare)(const void *, const void *, size_t) = memcmp;
static size_t (*volatile length)(const char *) = strlen;

int main(void)
{
    char *base = dlsym(RTLD_DEFAULT, "puts");
    printf("%td %td %td %td\n", (char *)copy - base, (char *)fill - base,
           (char *)compare - base, (char *)length - base);
    return 0;
}
"""

# The same loop three times as often in one function as in the other.
LOOPS = r"""
__attribute__((noipa)) void first(volatile int *at)
{
    for (int i = 0; i < 1000000; i++)
        *at += i;
}

__attribute__((noipa)) void second(volatile int *at)
{
    for (int i = 0; i < 1000000; i++)
        *at += i;
}

int main(void)
{
    int at = 0;
    for (int i = 0; i < 4; i++)
        (i == 2 ? first : second)(&at);
    return 0;
}
"""

Row = tuple[int, int, str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracer.build(tmp_path_factory.mktemp("tool"))


def rows_of(records: NDArray[np.uint64]) -> list[Row]:
    return [
        (word & (1 << 48) - 1, word >> 48 & 0x7FFF, "S" if word >> 63 else "L")
        for word in records.tolist()
    ]


def traced(command: list[str], library: Path) -> NDArray[np.uint64]:
    return np.concatenate(list(tracer.references(command, library)))


def stretches(
    command: list[str], library: Path, blocks: list[Block], quantum: int = 1 << 30
) -> list[Stretch]:
    return list(tracer.stretches(command, library, blocks, quantum_accesses=quantum))


def lackey_instructions(log: Path) -> Iterator[tuple[int, list[Row]]]:
    """Read lackey's trace: instructions, and what each references. M is a load and a store, of a
    locked instruction after its load."""
    ip, rows = 0, list[Row]()
    for line in log.read_text().splitlines():
        match = re.fullmatch(r"(I | L| S| M) +([0-9a-f]+),(\d+)", line)
        if match is None:
            continue
        kind, reference = match[1].strip(), (int(match[2], 16), int(match[3]))
        if kind == "I":
            if ip:
                yield ip, rows
            ip, rows = reference[0], []
        elif kind != "M":
            rows.append((*reference, kind))
        else:
            if rows[-1:] != [(*reference, "L")]:
                rows.append((*reference, "L"))
            rows.append((*reference, "S"))
    yield ip, rows


def as_counted(log: Path) -> tuple[list[Row], int]:
    """Return the references of lackey's trace, and how many instructions made them, without the
    iterations that move no other line: they follow upon one at the same address that stored."""
    told, instructions = list[Row](), 0
    ip_before, before = 0, list[Row]()
    for ip, rows in lackey_instructions(log):
        kept = rows
        if ip == ip_before and any(kind == "S" for *_, kind in before):
            kept = [
                row
                for row, last in zip(rows, before, strict=False)
                if not lines_of(row) <= lines_of(last)
            ]
            instructions += bool(kept)
        else:
            instructions += 1
        told.extend(kept)
        ip_before, before = ip, rows
    return told, instructions


def lines_of(row: Row) -> set[int]:
    return {row[0] // LINE_BYTES, (row[0] + row[1] - 1) // LINE_BYTES}


def lackey(command: list[str], library: Path, log: Path) -> tuple[list[Row], int]:
    subprocess.run(
        ["valgrind", "-q", "--tool=lackey", "--trace-mem=yes", f"--log-file={log}", *command],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "VALGRIND_LIB": str(library)},  # the same on both stacks
        check=True,
    )
    return as_counted(log)


@needs_valgrind
def test_every_kind_of_reference_is_recorded_once(library: Path, tmp_path: Path) -> None:
    program = compile_c(tmp_path, PROGRAM)
    page = 0x10000000
    rows = [
        (address - page, size, kind)
        for address, size, kind in rows_of(traced([str(program)], library))
        if page <= address < page + 8192
    ]
    assert rows == EXPECTED


@needs_valgrind
def test_a_whole_program_is_as_lackey_prints_it(library: Path, tmp_path: Path) -> None:
    command = ["/bin/ls", "-a", "/"]
    theirs, instructions = lackey(command, library, tmp_path / "log")
    ours = rows_of(traced(command, library))
    assert len(ours) == len(theirs) > 100_000
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= RUN_TO_RUN
    told = sum(each.instructions for each in stretches(command, library, []))
    assert told == pytest.approx(instructions, rel=1e-4)


@needs_valgrind
def test_runs_are_the_references_line_by_line(library: Path) -> None:
    command = ["/bin/ls", "-a", "/"]
    lines = accessed_lines(traced(command, library))
    runs = np.concatenate([each.runs for each in stretches(command, library, [])])
    told = np.repeat(runs & (1 << RUN_LINE_BITS) - 1, (runs >> RUN_LINE_BITS).astype(np.int64))
    assert len(told) == len(lines)
    assert (told != lines).sum() <= RUN_TO_RUN


@needs_valgrind
def test_stretches_end_where_a_quantum_does(library: Path) -> None:
    quantum = 1000
    ends = [0]
    for each in stretches(["/bin/ls", "-a", "/"], library, [], quantum):
        assert (each.runs >> RUN_LINE_BITS).sum() == each.accesses
        ends.append(ends[-1] + each.accesses)
    assert all(a // quantum == (b - 1) // quantum for a, b in itertools.pairwise(ends))
    assert set(range(quantum, ends[-1], quantum)) < set(ends)


@needs_valgrind
def test_samples_name_the_code_that_ran(library: Path, tmp_path: Path) -> None:
    program = compile_c(tmp_path, LOOPS, "-falign-functions=64")
    blocks: list[Block] = []
    parts = stretches([str(program)], library, blocks)
    samples = np.concatenate([each.samples for each in parts])
    instructions = sum(each.instructions for each in parts)
    assert len(samples) == pytest.approx(instructions / tracer.SAMPLE_EVERY_INSTRUCTIONS, rel=0.1)
    inside = [blocks[n] for n in samples.tolist() if blocks[n].file == str(program)]
    addresses = subprocess.run(
        ["nm", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    start = {
        name: int(at, 16) for at, _, name in (row.split() for row in addresses if row[0] != " ")
    }
    # Text of an executable this small lies in the file where it lies in memory.
    first, second = (
        sum(start[name] <= block.offset < start[name] + 64 for block in inside)
        for name in ("first", "second")
    )
    assert first + second > 0.9 * len(inside) > 0.5 * len(samples)
    assert second / first == pytest.approx(3, rel=0.3)


@needs_valgrind
@pytest.mark.skipif(not copies_alike(), reason="this CPU has no ERMS, which valgrind tells of")
def test_glibc_chooses_the_same_routines_natively(tmp_path: Path) -> None:
    program = compile_c(tmp_path, ROUTINES)
    native, under_valgrind = (
        subprocess.run(
            [*prefix, program], env=environment(), capture_output=True, text=True, check=True
        ).stdout
        for prefix in ([], ["valgrind", "-q", "--tool=none"])
    )
    assert native == under_valgrind != ""


@needs_valgrind
def test_a_failing_program_is_an_error(library: Path) -> None:
    with pytest.raises(tracer.TracerError, match="status 1"):
        traced(["/bin/false"], library)


@needs_valgrind
def test_a_reader_that_stops_ends_the_trace(library: Path) -> None:
    chunks = tracer.references(["/bin/ls", "/usr/bin"], library)
    assert next(chunks).nbytes == tracer.CHUNK_BYTES
    chunks.close()  # type: ignore[attr-defined]


@needs_valgrind
def test_a_reference_made_again_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_references, "BUILD", tmp_path)
    program = Program("list", "listing a folder", "", "", lambda _: ("/bin/ls", "-a", "/usr/bin"))
    for name in ("one", "two"):
        assert "windows" in make_references.make(program, tmp_path / name)
    one, two = store.load(tmp_path / "one"), store.load(tmp_path / "two")
    assert one.made["command"] == "/bin/ls -a /usr/bin"
    assert compare(one, two).tolerable


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_kept_references_obey_the_laws_of_caches(program: Program) -> None:
    kept = store.load(store.path_of(program.name))
    assert kept.name == program.name
    assert kept.total_accesses > 1e8
    assert len(kept.accesses) <= WINDOWS + 1
    assert (kept.accesses[:-1] == kept.accesses[0]).all()
    assert 0 < kept.accesses[-1] <= kept.accesses[0]
    # LRU is a stack algorithm: a larger cache never misses more, in any window.
    assert (np.diff(kept.lru, axis=1) <= 0).all()
    assert (kept.lru[:, 0] <= kept.accesses).all()
    assert kept.random.shape == (len(kept.accesses), len(ERROR_SIZES_BYTES))
    assert (kept.random <= kept.accesses[:, None]).all()
    assert len(kept.accesses) > WINDOWS / 2
    assert (np.diff(kept.lru_fine, axis=1) <= 0).all()
    assert (kept.instructions > 0).all()
    assert kept.cold.sum() == kept.distinct_lines
    assert (kept.reuses >= 0).all()
    # Reuse is no farther in lines than in accesses: what misses had at least so many between.
    sizes_lines = np.array(FINE_SIZES_BYTES) // LINE_BYTES
    for misses, size in zip(kept.lru_fine.sum(axis=0), sizes_lines, strict=True):
        far = kept.reuses.sum(axis=0)[REUSE_EDGES[1:] > size].sum()
        assert misses <= far + kept.distinct_lines
    per_window = kept.branches.table().sum(axis=1)
    taken = kept.instructions.mean() / tracer.SAMPLE_EVERY_INSTRUCTIONS
    assert per_window.mean() == pytest.approx(min(taken, SAMPLES_A_WINDOW), rel=0.05)
