"""Restartable sequences in a replica come to their end, as they nearly always do in the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tracees

# Counts sequences committed and aborted, with glibc's own registration; a CPU number that the
# kernel would never show ends it in SIGILL.
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <sys/rseq.h>
#if RSEQ_SIG != 0x53053053
#error another signature
#endif
uint64_t committed, aborted;
static volatile uint64_t sink[64];
static void sequence(struct rseq *area)
{
    __asm__ volatile(
        ".pushsection __rseq_cs, \"aw\"\n .balign 32\n"
        "3: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n .popsection\n"
        "lea 3b(%%rip), %%rax\n mov %%rax, 8(%[area])\n"
        "1: nop\n nop\n nop\n incq committed(%%rip)\n"
        "2: jmp 5f\n"
        ".pushsection __rseq_failure, \"ax\"\n .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
        "4: incq aborted(%%rip)\n jmp 5f\n .popsection\n"
        "5:"
        :
        : [area] "r"(area)
        : "rax", "memory", "cc");
}
int main(void)
{
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    if (__rseq_size == 0) { puts("none"); return 0; }
    printf("%p %p\n", (void *)&committed, (void *)&aborted);
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 50; i++) sink[i] += (uint64_t)i;
        sequence(area);
        if ((int)*(volatile uint32_t *)&area->cpu_id < 0) __builtin_trap();
    }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracees.compile_c(tmp_path_factory.mktemp("rseq"), PROGRAM)


@pytest.mark.parametrize("way", tracees.WAYS)
def test_a_sequence_is_not_aborted(program: Path, way: str) -> None:
    with tracees.running(program) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line == "none\n":
            pytest.skip("no restartable sequences here")
        committed, aborted = (int(word, 16) for word in line.split())
        rows = tracees.rows_from(process.pid, way, 5000)
        assert np.count_nonzero(rows.address == committed) > 20
        # It may begin where the kernel has just aborted one of the target itself.
        assert np.count_nonzero(rows.address[4:] == aborted) == 0
        assert process.poll() is None
