"""Recorded references against an oracle that knows nothing of decoding: the addresses that a
program prints of its own buffers, and the labels of its own instructions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tracees

from memsampd.sampler.records import AccessChunk, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

CPU_FLAGS = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())

# Each block is one sequence on known data; NAME_ip labels the instruction looked at. The masks of
# stack: %rsp points into `stack` + 2048 while the stack instructions run.
PROGRAM = r"""
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <stdlib.h>
#include <cpuid.h>
char a[4096] __attribute__((aligned(64))), b[4096] __attribute__((aligned(64)));
char stack[4096] __attribute__((aligned(64)));
int32_t index32[16] __attribute__((aligned(64))) = {
    9, 1, -2, 30, 4, 5, 6, 77, 8, 2, 10, 11, 12, 13, 14, 100
};
int32_t signs[8] __attribute__((aligned(32))) = {-1, 0, -1, -1, 0, 0, 0, -1};
uint64_t trap_flag_seen;
#define L(name) ".globl " #name "_ip\n" #name "_ip: "
static void base_block(void)
{
    uint64_t seen;
    __asm__ volatile(
        "mov %%rsp, %%r15\n lea stack+2048(%%rip), %%rsp\n lea a(%%rip), %%rsi\n"
        "lea b(%%rip), %%rdi\n xor %%eax, %%eax\n mov $3, %%ecx\n"
        L(plain_load) "mov 5(%%rsi,%%rcx,8), %%edx\n"
        L(plain_store) "movb %%al, 100(%%rdi)\n"
        L(rmw) "lock addw $0, 10(%%rsi)\n"
        L(cmpxchg) "cmpxchg %%rdx, 16(%%rsi)\n xor %%eax, %%eax\n"
        L(swap) "xchg %%rdx, 32(%%rdi)\n"
        L(push) "push %%rdx\n"
        L(pop) "pop %%rdx\n"
        L(pop_memory) "push %%rdx\n" L(pop_to) "popq 8(%%rsp)\n"
        L(call) "call 1f\n jmp 2f\n 1:" L(ret) "ret\n 2:\n"
        L(padded_call) ".byte 0x66, 0x66, 0x48\n call 3f\n jmp 4f\n 3: ret\n 4:\n" /* of TLS */
        L(pushf) "pushfq\n pop %0\n"
        L(address32) "addr32 mov (%%esi), %%edx\n"
        "mov $4, %%ecx\n" L(rep_movs) "rep movsb\n"
        "mov $20, %%ecx\n" L(rep_stos) "rep stosq\n"
        "lea a+50(%%rip), %%rsi\n lea b+61(%%rip), %%rdi\n"
        "mov $50, %%ecx\n" L(rep_across) "rep movsl\n"
        "std\n lea a+261(%%rip), %%rsi\n lea b+258(%%rip), %%rdi\n"
        "mov $70, %%ecx\n" L(rep_back) "rep movsw\n cld\n"
        "xor %%ecx, %%ecx\n" L(rep_none) "rep movsb\n"
        "lea a(%%rip), %%rdi\n mov $1, %%al\n mov $5, %%ecx\n" L(scan) "repne scasb\n"
        "mov %%r15, %%rsp\n"
        : "=&r"(seen) : : "rax", "rcx", "rdx", "rsi", "rdi", "r15", "memory", "cc");
    trap_flag_seen += seen >> 8 & 1;
}
static void avx2_block(void)
{
    __asm__ volatile(
        "lea a+1024(%%rip), %%rax\n vmovdqa index32(%%rip), %%ymm1\n vmovdqa signs(%%rip), %%ymm2\n"
        "vmovdqa %%ymm2, %%ymm3\n"
        L(gather) "vpgatherdd %%ymm2, 8(%%rax,%%ymm1,4), %%ymm0\n"
        L(maskload) "vpmaskmovd (%%rax), %%ymm3, %%ymm4\n"
        L(maskstore) "vmaskmovps %%ymm4, %%ymm3, 64(%%rax)\n"
        L(ymm) "vmovdqu 1(%%rax), %%ymm5\n vzeroupper\n"
        : : : "rax", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "memory");
}
static void avx512_block(void)
{
    __asm__ volatile(
        "lea a+1024(%%rip), %%rax\n vmovdqa64 index32(%%rip), %%zmm17\n"
        "mov $0x8106, %%ecx\n kmovw %%ecx, %%k1\n kmovw %%ecx, %%k2\n kmovw %%ecx, %%k3\n"
        L(gather512) "vpgatherdd (%%rax,%%zmm17,4), %%zmm20%{%%k1%}\n"
        L(scatter512) "vpscatterdd %%zmm20, (%%rax,%%zmm17,4)%{%%k2%}\n"
        L(masked512) "vmovdqu32 %%zmm20, 256(%%rax)%{%%k3%}\n"
        L(compress512) "vpcompressd %%zmm20, 512(%%rax)%{%%k3%}\n"
        L(expand512) "vpexpandd 512(%%rax), %%zmm20%{%%k3%}\n"
        L(broadcast512) "vbroadcastss 12(%%rax), %%zmm21%{%%k3%}\n"
        L(embedded512) "vaddps 16(%%rax)%{1to16%}, %%zmm20, %%zmm21%{%%k3%}\n"
        "kxorw %%k4, %%k4, %%k4\n" L(nothing512) "vmovdqu32 (%%rax), %%zmm20%{%%k4%}\n"
        "mov $0xff00, %%ecx\n kmovw %%ecx, %%k4\n"
        L(beyond512) "vaddps 16(%%rax)%{1to8%}, %%ymm20, %%ymm21%{%%k4%}\n"
        L(plain512) "vmovdqu64 3(%%rax), %%zmm20\n vzeroupper\n"
        : : : "rax", "rcx", "memory");
}
int main(int argc, char **argv)
{
    int wide = argc > 1 && atoi(argv[1]) >= 2, wider = argc > 1 && atoi(argv[1]) >= 3;
    a[2] = 1;
    printf("%p %p %p\n", (void *)a, (void *)b, (void *)stack);
    fflush(stdout);
    for (;;) {
        base_block();
        if (wide) avx2_block();
        if (wider) avx512_block();
        if (trap_flag_seen) abort();
    }
}
"""
INDEX = [9, 1, -2, 30, 4, 5, 6, 77, 8, 2, 10, 11, 12, 13, 14, 100]
ACTIVE = [1, 2, 8, 15]  # bits of 0x8106

Rows = list[tuple[int, int, bool]]


class Observed:
    """Rows of the program, with its symbols."""

    def __init__(
        self, rows: AccessChunk, labels: dict[str, int], a: int, b: int, stack: int
    ) -> None:
        self.rows, self.labels, self.a, self.b, self.stack = rows, labels, a, b, stack

    def rounds(self, name: str) -> list[Rows]:
        """Rows of one instruction, cut where another instruction lay between."""
        seen, previous = self.rows, -2
        rounds: list[Rows] = []
        for i in map(int, np.flatnonzero(seen.ip == self.labels[name])):
            if i != previous + 1:
                rounds.append([])
            row = (int(seen.address[i]), int(seen.size_bytes[i]), bool(seen.is_write[i]))
            rounds[-1].append(row)
            previous = i
        return rounds


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracees.compile_c(
        tmp_path_factory.mktemp("addresses"), PROGRAM, "-no-pie", "-fno-omit-frame-pointer"
    )


def labels_of(program: Path) -> dict[str, int]:
    listing = subprocess.run(["nm", program], check=True, capture_output=True, text=True)
    symbols = (
        line.split() for line in listing.stdout.splitlines() if line.split()[-1].endswith("_ip")
    )
    return {name.removesuffix("_ip"): int(address, 16) for address, _, name in symbols}


@pytest.fixture(scope="module", params=tracees.WAYS)
def observed(program: Path, request: pytest.FixtureRequest) -> Iterator[Observed]:
    labels = labels_of(program)
    level = 3 if "avx512f" in CPU_FLAGS else 2 if "avx2" in CPU_FLAGS else 1
    with tracees.running(program, str(level)) as process:
        assert process.stdout is not None
        a, b, stack = (int(text, 16) for text in process.stdout.readline().split())
        rows = tracees.rows_from(process.pid, request.param, 4000)
        assert process.poll() is None  # it would abort had it seen a trap flag of ours
        yield Observed(rows, labels, a, b, stack)


def to_other_lines(iterations: list[Rows]) -> Rows:
    """Rows that touch a line which the same operand of the iteration before did not touch."""
    kept: Rows = []
    before: dict[bool, set[int]] = {}
    for row in (row for rows in iterations for row in rows):
        address, size_bytes, is_write = row
        lines = {address // 64, (address + size_bytes - 1) // 64}
        if not lines <= before.get(is_write, set()):
            kept.append(row)
        before[is_write] = lines
    return kept


def expected(o: Observed) -> dict[str, Rows]:
    a, b, stack = o.a, o.b, o.stack
    top = stack + 2048
    return {
        "plain_load": [(a + 5 + 24, 4, False)],
        "plain_store": [(b + 100, 1, True)],
        "rmw": [(a + 10, 2, False), (a + 10, 2, True)],
        "cmpxchg": [(a + 16, 8, False), (a + 16, 8, True)],
        "swap": [(b + 32, 8, False), (b + 32, 8, True)],
        "push": [(top - 8, 8, True)],
        "pop": [(top - 8, 8, False)],
        "pop_to": [(top - 8, 8, False), (top + 8, 8, True)],
        "call": [(top - 8, 8, True)],
        "ret": [(top - 8, 8, False)],
        "padded_call": [(top - 8, 8, True)],
        "pushf": [(top - 8, 8, True)],
        "address32": [(a, 4, False)],
        "rep_movs": [(a, 1, False), (b, 1, True)],
        "rep_stos": to_other_lines([[(b + 4 + 8 * i, 8, True)] for i in range(20)]),
        "rep_across": to_other_lines(
            [[(a + 50 + 4 * i, 4, False), (b + 61 + 4 * i, 4, True)] for i in range(50)]
        ),
        "rep_back": to_other_lines(
            [[(a + 261 - 2 * i, 2, False), (b + 258 - 2 * i, 2, True)] for i in range(70)]
        ),
        "scan": [(a + i, 1, False) for i in range(3)],
    }


def expected_avx2(o: Observed) -> dict[str, Rows]:
    base = o.a + 1024
    return {
        "gather": [(base + 8 + 4 * INDEX[i], 4, False) for i in (0, 2, 3, 7)],
        "maskload": [(base, 32, False)],
        "maskstore": [(base + 64, 32, True)],
        "ymm": [(base + 1, 32, False)],
    }


def expected_avx512(o: Observed) -> dict[str, Rows]:
    base = o.a + 1024
    return {
        "gather512": [(base + 4 * INDEX[i], 4, False) for i in ACTIVE],
        "scatter512": [(base + 4 * INDEX[i], 4, True) for i in ACTIVE],
        "masked512": [(base + 256 + 4, 60, True)],
        "compress512": [(base + 512, 16, True)],
        "expand512": [(base + 512, 16, False)],
        "broadcast512": [(base + 12, 4, False)],
        "embedded512": [(base + 16, 4, False)],
        "plain512": [(base + 3, 64, False)],
    }


def _check(o: Observed, wanted: dict[str, Rows]) -> None:
    for name, rows in wanted.items():
        rounds = o.rounds(name)[1:-1]  # the first and the last may be cut
        assert len(rounds) > 10, name
        assert all(got == rows for got in rounds), (name, rounds[0], rows)


def test_base_instructions(observed: Observed) -> None:
    _check(observed, expected(observed))
    assert observed.rounds("rep_none") == []


def test_elements_of_string_instructions_are_counted(program: Path) -> None:
    """Of rep movs and rep stos, whatever their size; not of rep scas."""
    each_round = 4 + 20 + 50 + 70
    with (
        tracees.running(program, "1") as process,
        closing(ReplicaSource(process.pid)) as source,
    ):
        request = BurstRequest(process.pid, 4000, 10)
        burst = tracees.patiently(lambda: source.capture(request))
        labels = labels_of(program)
    rounds = int(np.count_nonzero(burst.ip == labels["plain_load"]))
    assert rounds > 10
    assert each_round * (rounds - 1) <= burst.repeats <= each_round * (rounds + 1)


@pytest.mark.skipif("avx2" not in CPU_FLAGS, reason="this CPU has no AVX2")
def test_avx2(observed: Observed) -> None:
    _check(observed, expected_avx2(observed))


@pytest.mark.skipif("avx512f" not in CPU_FLAGS, reason="this CPU has no AVX-512")
def test_avx512(observed: Observed) -> None:
    _check(observed, expected_avx512(observed))
    assert observed.rounds("nothing512") == []
    assert observed.rounds("beyond512") == []
