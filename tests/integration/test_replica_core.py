"""What the modelled core says of programs whose code is known, in cycles: on any machine."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tracees import compile_c, patiently, running, tries
from waiting import wait_for

from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.rates import DISTANT_CYCLES, CoreTimes
from memsampd.sampler.records import BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static uint64_t *line; /* the first word of each tells where the next one is, in a random cycle */
static uint64_t random_state = 1;
static uint64_t draw(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}
static void make(uint64_t lines)
{
    line = aligned_alloc(64, lines * 64);
    for (uint64_t i = 0; i < lines; i++)
        line[8 * i] = i;
    for (uint64_t i = lines - 1; i > 0; i--) { /* Sattolo: one cycle */
        uint64_t j = draw() % i, kept = line[8 * i];
        line[8 * i] = line[8 * j];
        line[8 * j] = kept;
    }
    for (uint64_t i = 0; i < lines; i++)
        line[8 * i] = (uint64_t)&line[8 * line[8 * i]];
}
int main(void)
{
    uint64_t x = 0;
    make(LINES);
    printf("ready\\n");
    fflush(stdout);
    volatile uint64_t *at = line;
    for (uint64_t i = 0;; i++) {
        BODY
    }
    return (int)x;
}
"""
CHASE = "at = (uint64_t *)*at;"
# Independent: each address follows from a counter.
GATHER = "x += *(volatile uint64_t *)&line[8 * ((i * 0x9E3779B97F4A7C15u >> 40) % LINES)];"
IN_L1, FAR = 128, 1 << 16
ACCESSES = 60_000
BETWEEN_BURSTS_NS = 10_000_000  # a burst covers 0.1 ms of it
WRONG_GUESS_CYCLES = 13 + 3  # which way it goes is known after a shift, a comparison, a branch


def run_on(pid: int) -> None:
    """Wait for a program to run for longer than a burst covers.

    Where bursts overlap, the core has met the same branches before, and guesses them.
    """
    until_ns = process_cpu_ns(pid) + BETWEEN_BURSTS_NS
    wait_for(lambda: process_cpu_ns(pid) > until_ns)


def core_times(
    folder: Path, body: str, lines: int = IN_L1, bursts: int = 1, flags: tuple[str, ...] = ()
) -> CoreTimes:
    """Return those of the last of some full bursts: later ones follow the program's usual ways."""
    source = PROGRAM.replace("BODY", body).replace("LINES", str(lines))
    with running(compile_c(folder, source, "-O2", *flags)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        request = BurstRequest(process.pid, ACCESSES, 1.0)
        with closing(ReplicaSource(process.pid)) as replica:
            while bursts > 0:
                run_on(process.pid)
                burst = patiently(lambda: replica.capture(request))
                bursts -= burst.end is BurstEnd.FULL  # else: cold code, on a busy machine
    assert burst.core is not None
    return burst.core


def exposed(core: CoreTimes) -> float:
    """By which part of a distant access's time all takes longer."""
    return (core.distant_cycles - core.near_cycles) / (core.distant * DISTANT_CYCLES)


def test_loads_that_wait_for_each_other_take_their_latency(tmp_path: Path) -> None:
    core = core_times(tmp_path, CHASE)
    assert core.near_cycles / core.accesses == pytest.approx(4, rel=0.01)
    assert core.distant == 0


def test_loads_that_do_not_wait_take_none(tmp_path: Path) -> None:
    core = core_times(tmp_path, GATHER)
    assert core.near_cycles / core.instructions == pytest.approx(1 / 5, rel=0.1)


def test_what_limits_most_limits_alone(tmp_path: Path) -> None:
    """Loads take a third of a cycle each, and other instructions go beside them."""
    loads = "".join(f"(void)at[{word}];" for word in range(6))
    others = '__asm__ volatile("nop; nop; nop");'
    core = core_times(tmp_path, loads + others)
    assert core.near_cycles / core.accesses == pytest.approx(1 / 3, rel=0.02)
    core = core_times(tmp_path, loads + 4 * others)
    assert core.near_cycles / core.instructions == pytest.approx(1 / 5, rel=0.02)


@pytest.mark.parametrize("times", [7, 25, 90])
def test_the_end_of_a_loop_is_guessed_where_it_is_always_as_long(
    tmp_path: Path, times: int
) -> None:
    body = f"for (volatile int *p = (int *)at; p < (int *)at + {times}; p++) *p;"
    core = core_times(tmp_path, body, bursts=4)
    assert core.near_cycles / core.instructions == pytest.approx(1 / 5, rel=0.1)


def test_distant_loads_wait_where_their_addresses_are_loaded(tmp_path: Path) -> None:
    core = core_times(tmp_path, CHASE, FAR)
    assert core.distant > 0.9 * core.accesses
    assert exposed(core) == pytest.approx(1, rel=0.02)


def test_distant_loads_overlap_where_their_addresses_are_computed(tmp_path: Path) -> None:
    core = core_times(tmp_path, GATHER, FAR)
    assert core.distant > 0.9 * core.accesses
    assert exposed(core) < 0.1


def test_chains_of_arithmetic_take_their_latency(tmp_path: Path) -> None:
    three = 'x += *at; __asm__ volatile("imul %0, %0\\n imul %0, %0\\n imul %0, %0" : "+r"(x));'
    core = core_times(tmp_path, three)
    assert core.near_cycles / core.accesses == pytest.approx(3 * 3 + 1, rel=0.02)


def test_what_is_loaded_waits_for_what_was_stored(tmp_path: Path) -> None:
    core = core_times(tmp_path, "*at += 1;")
    assert core.near_cycles / (core.accesses / 2) == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize("chances", [(0, 0.1, 0.5), (1, 0.9, 0.5)], ids=["on", "there"])
def test_branches_that_nobody_can_guess_take_long(
    tmp_path: Path, chances: tuple[float, ...]
) -> None:
    # Three accesses an iteration, whichever way it goes: the state is loaded and stored each time.
    body = """
        (void)*at;
        __asm__ volatile goto("cmp %0, %1; jb %l2; nop"
            :: "r"((uint64_t)(CHANCE * (1u << 31))), "r"(draw()) : "memory" : there);
        there:;
    """
    cycles = []
    for chance in chances:
        core = core_times(tmp_path, body.replace("CHANCE", str(chance)), bursts=4)
        cycles.append(3 * core.near_cycles / core.accesses)
    never, seldom, often = cycles
    assert never == pytest.approx(8, rel=0.01)  # loaded, multiplied, added, stored
    assert seldom - never == pytest.approx(0.1 * WRONG_GUESS_CYCLES, rel=0.25)
    assert often - never == pytest.approx(0.5 * WRONG_GUESS_CYCLES, rel=0.15)


# Of a word of each of some lines, by vectors: all of them at once, and those that a mask names.
VECTORS = """
    __m256i far = _mm256_add_epi64(_mm256_set1_epi64x((i * 0x9E3779B97F4A7C15u >> 44) % LINES),
                                   _mm256_setr_epi64x(0, LINES / 4, LINES / 2, LINES * 3 / 4));
    far = _mm256_slli_epi64(_mm256_and_si256(far, _mm256_set1_epi64x(LINES - 1)), 3);
    __asm__ volatile("" :: "x"(WHAT));
"""
GATHERED = "_mm256_i64gather_epi64((long long *)line, far, 8)"
MASKED = "_mm256_maskload_epi64((long long *)line + _mm256_extract_epi64(far, 1), all)"
SAID = "__m256i all = _mm256_set1_epi64x(-1);"


@pytest.mark.parametrize(("what", "accesses"), [(GATHERED, 4), (MASKED, 1)])
def test_what_vectors_gather_may_be_distant(tmp_path: Path, what: str, accesses: int) -> None:
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("a CPU without AVX2")
    body = SAID + VECTORS.replace("WHAT", what)
    core = core_times(tmp_path, body, FAR, flags=("-mavx2", "-include", "immintrin.h"))
    assert core.distant > 0.9 * core.accesses
    assert exposed(core) < 0.1 * accesses


@pytest.mark.parametrize("then", ["", "(void)to[-1];"])
def test_what_is_filled_is_distant_at_its_begin(tmp_path: Path, then: str) -> None:
    """It is swept: all behind that was told beforehand, and is there when it is over."""
    body = """
        volatile uint64_t *to = &line[(i * 0x9E3779B97F4A7C15u >> 40) % (LINES / 2) * 8];
        uint64_t count = 8 * 20;
        __asm__ volatile("rep stosq" : "+D"(to), "+c"(count) : "a"(0) : "memory");
    """
    core = core_times(tmp_path, body + then, FAR)
    fills = core.accesses / (20 + bool(then))
    assert core.distant == pytest.approx(fills, rel=0.1)


# The first instruction behind a call is the first of a block; each takes its latency, in a chain.
CALLING = """
#include <stdio.h>
#include <sys/syscall.h>
int main(void) {
    printf("ready\\n");
    fflush(stdout);
    __asm__ volatile("1: sqrtsd %%xmm0, %%xmm0; mov %0, %%eax; syscall; jmp 1b"
                     :: "i"(SYS_getppid) : "rax", "rcx", "r11", "xmm0", "memory");
}
"""
SQRT_CYCLES, INSTRUCTIONS_A_CALL = 14, 4


def test_a_call_takes_no_time_on_the_modelled_core(tmp_path: Path) -> None:
    with running(compile_c(tmp_path, CALLING)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        request = BurstRequest(process.pid, ACCESSES, 1.0)
        with closing(ReplicaSource(process.pid)) as replica:
            for _ in tries():
                burst = patiently(lambda: replica.capture(request))
                if burst.calls >= 8:
                    break
    assert burst.core is not None
    calls = burst.core.instructions / INSTRUCTIONS_A_CALL
    assert burst.core.near_cycles / calls == pytest.approx(SQRT_CYCLES, rel=0.3)
