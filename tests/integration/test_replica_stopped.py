"""Bursts that end by the clock, anywhere: the registers told are such as the program has there."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from tracees import address_of, compile_c, patiently, running, tries

from memsampd.sampler.records import BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

# Calls one of sixteen functions by a pointer, each time another one. Of all registers it changes
# rax and rsp only.
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
uint64_t loop_stack;
int main(void)
{
    puts("ready");
    fflush(stdout);
    __asm__ volatile(
        ".altmacro\n"
        "mov %rsp, loop_stack\n"
        "mov $0, %rax\n mov $101, %rcx\n mov $102, %rdx\n mov $103, %rbx\n mov $105, %rbp\n"
        "mov $106, %rsi\n mov $107, %rdi\n mov $108, %r8\n mov $109, %r9\n mov $110, %r10\n"
        "mov $111, %r11\n mov $112, %r12\n mov $113, %r13\n mov $114, %r14\n mov $115, %r15\n"
        ".globl loop_begin, loop_end, function_end\n"
        "loop_begin:\n"
        "call *functions(,%rax,8)\n"
        "jmp loop_begin\n"
        "loop_end:\n"
        ".macro function number\n"
        "function\\number: lea 3(%rax,%rax,4), %rax\n and $15, %rax\n test $1, %rax\n jz 1f\n"
        "nop\n 1: ret\n"
        ".endm\n"
        ".irp number, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n function \\number\n .endr\n"
        "function_end:\n"
        ".section .data\n functions:\n"
        ".irp number, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n .quad function\\number\n .endr\n"
        ".previous\n");
    __builtin_unreachable();
}
"""

ORDER = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp"]
ORDER += [f"r{number}" for number in range(8, 16)]
CONSTANT = {"rcx": 101, "rdx": 102, "rbx": 103, "rbp": 105, "rsi": 106, "rdi": 107}
CONSTANT |= {f"r{number}": 100 + number for number in range(8, 16)}
ACCESSES = 1_500_000  # more than there is time for
MOMENTS = 60
SOURCES = 8  # each waits for 100 ms after a burst that took all of its time


def test_registers_at_the_release_are_possible_ones(tmp_path: Path) -> None:
    """They are the program's where it is between two blocks, or in the midst of a call, too."""
    program = compile_c(tmp_path, PROGRAM, "-no-pie")
    begin, end, functions_end, stack_word = (
        address_of(program, name)
        for name in ("loop_begin", "loop_end", "function_end", "loop_stack")
    )
    with running(program) as process, ExitStack() as opened:
        assert process.stdout is not None
        process.stdout.readline()
        sources = [
            opened.enter_context(closing(ReplicaSource(process.pid))) for _ in range(SOURCES)
        ]
        seen = 0
        for number in tries():
            request = BurstRequest(process.pid, ACCESSES, 0.0005 + 0.00001 * (number % 50))
            burst = patiently(partial(sources[number % SOURCES].capture, request))
            reason, ips, stretch = burst.end, burst.stretch_ip.tolist(), burst.stretch.tolist()
            if reason is not BurstEnd.HOLD or not stretch:
                continue
            with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
                memory.seek(stack_word)
                stack = int.from_bytes(memory.read(8), "little")
            for ip, values in zip(ips, stretch, strict=True):
                registers = dict(zip(ORDER, values, strict=True))
                assert begin <= ip < functions_end
                assert registers.pop("rsp") == (stack if ip < end else stack - 8)
                assert registers.pop("rax") <= (15 if ip < end else 15 * 5 + 3)
                assert registers == CONSTANT
            seen += 1
            if seen == MOMENTS:
                break
