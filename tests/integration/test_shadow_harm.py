"""The target must not notice: what the shadow source must never break, on real programs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import shadowing

from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor

KILL_ROUNDS = int(os.environ.get("MEMSAMPD_KILL_ROUNDS", "12"))
KILL_WITHIN_SECONDS = 0.3

# Computes in integer, SSE, x87 and (where the CPU has it) AVX-512 registers, without end, and
# compares each round with the first; prints "wrong" and exits at the first difference.
CHECKSUM = r"""
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <signal.h>
#include <immintrin.h>
static volatile sig_atomic_t done;
static void finish(int n) { (void)n; done = 1; }
static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}
static uint64_t table[4096];
static uint64_t scalar_round(void)
{
    uint64_t h = 1;
    long double x = 1.0L;
    double y = 1.0;
    for (int i = 0; i < 200000; i++) {
        h = mix(h, table[h & 4095] + (uint64_t)i);
        table[i & 4095] = (uint64_t)i * 77;
        x = x * 1.0000001L + (long double)(h & 3);
        y = y * 0.999 + (double)(h >> 60);
    }
    uint64_t bits; memcpy(&bits, &y, 8); h = mix(h, bits);
    memcpy(&bits, &x, 8);
    return mix(h, bits);
}
__attribute__((target("avx512f"))) static uint64_t vector_round(void)
{
    __m512i a = _mm512_set1_epi64(3), b = _mm512_set1_epi64(5), c = _mm512_set1_epi64(7);
    __mmask8 k = 0x5a;
    for (int i = 0; i < 200000; i++) {
        a = _mm512_add_epi64(_mm512_rol_epi64(a, 7), b);
        b = _mm512_mask_xor_epi64(b, k, a, c);
        c = _mm512_sub_epi64(_mm512_ror_epi64(c, 11), a);
        k = _mm512_cmpgt_epi64_mask(a, c);
        __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c));
    }
    uint64_t v[8], h = k;
    _mm512_storeu_si512(v, _mm512_xor_si512(a, _mm512_add_epi64(b, c)));
    for (int i = 0; i < 8; i++) h = mix(h, v[i]);
    return h;
}
static uint64_t once(void)
{
    for (int i = 0; i < 4096; i++) table[i] = (uint64_t)i;
    return scalar_round() ^ (__builtin_cpu_supports("avx512f") ? vector_round() : 0);
}
int main(void)
{
    signal(SIGTERM, finish);
    uint64_t first = once();
    puts("ready"); fflush(stdout);
    long rounds = 0;
    for (; !done; rounds++)
        if (once() != first) { puts("wrong"); return 1; }
    puts("right");
    return 0;
}
"""


@pytest.fixture(scope="module")
def checksum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shadowing.compile_c(tmp_path_factory.mktemp("checksum"), CHECKSUM)


def _result(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    answer = process.stdout.read()
    assert process.wait() == 0
    return answer.strip()


def test_registers_and_vectors_survive(checksum: Path) -> None:
    with shadowing.running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with shadowing.observed(process.pid) as tally:
            time.sleep(4)
        assert tally.bursts > 0
        assert tally.accesses > 1000
        assert shadowing.traces_left(process.pid) == []
        assert shadowing.orphans() == []
        assert _result(process) == "right"


def test_killing_the_observer_at_any_moment_leaves_nothing(checksum: Path) -> None:
    delays = random.Random(20260)
    with shadowing.running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for round_number in range(KILL_ROUNDS):
            attacker = shadowing.attacker(process.pid)
            assert attacker.stdout is not None
            attacker.stdout.readline()
            time.sleep(delays.uniform(0, KILL_WITHIN_SECONDS))
            attacker.kill()
            attacker.wait()
            attacker.stdout.close()
            left = shadowing.wait_until_clean(process.pid)
            assert left == [], f"round {round_number}"
            assert process.poll() is None, f"round {round_number}"
        assert shadowing.orphans() == []
        assert _result(process) == "right"


def test_a_later_attach_collects_what_a_killed_guardian_could_not(checksum: Path) -> None:
    delays = random.Random(7)
    orphaned = 0
    with shadowing.running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(40):
            attacker = shadowing.attacker(process.pid)
            assert attacker.stdout is not None
            attacker.stdout.readline()
            time.sleep(delays.uniform(0.01, 0.1))
            for child, _, _ in shadowing.children(attacker.pid):
                os.kill(child, signal.SIGKILL)
            attacker.kill()
            attacker.wait()
            attacker.stdout.close()
            orphaned += bool(shadowing.children(process.pid))
            if orphaned >= 3:
                break
        assert orphaned > 0
        ShadowSource(process.pid, SteppingExecutor()).close()
        assert shadowing.traces_left(process.pid) == []
        assert _result(process) == "right"
