"""Bursts that begin where a thread comes to certain code."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tracees import compile_c, descriptors, patiently, running

from memsampd.errors import CaptureError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

ACCESSES = 20_000
SECONDS = 60.0  # a busy machine may let it run late; nothing is asserted on it

# It is in `rare` for a thousandth of its time, and comes there again and again; never in `never`.
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
static volatile uint64_t words[1024];
__attribute__((noinline)) void often(uint64_t n) { while (n--) words[n % 512]++; }
__attribute__((noinline)) void rare(uint64_t n) { while (n--) words[512 + n % 512]++; }
__attribute__((noinline)) void never(void) { words[0] = 0; }
int main(int argc, char **argv)
{
    (void)argv;
    printf("%p %p %p\\n", (void *)(words + 512), (void *)rare, (void *)never);
    fflush(stdout);
    for (;;) {
        often(10 * 1000 * 1000);
        rare(10 * 1000);
        if (argc > 1)
            never();
    }
}
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[tuple[int, int, int, int]]:
    program = compile_c(tmp_path, PROGRAM)
    with running(program) as process:
        assert process.stdout is not None
        words, rare, never = (int(each, 16) for each in process.stdout.readline().split())
        yield process.pid, words, rare, never


def test_a_burst_begins_at_rare_code(target: tuple[int, int, int, int]) -> None:
    pid, words, rare, _ = target
    before = descriptors()
    with closing(ReplicaSource(pid)) as source:
        request = BurstRequest(pid, ACCESSES, 0.02, seek_ips=(rare,), seek_seconds=SECONDS)
        while True:  # it may be switched out just there, and its tracer come late
            burst = patiently(partial(source.capture, request))
            assert burst.cost.hit_seconds > 0
            own = burst.address[(burst.address >= words - 4096) & (burst.address < words + 4096)]
            if len(own) and own[0] >= words:
                break
    assert descriptors() == before


def test_code_that_does_not_come_is_told(target: tuple[int, int, int, int]) -> None:
    pid, _, _, never = target
    with closing(ReplicaSource(pid)) as source:
        patiently(partial(source.capture, BurstRequest(pid, ACCESSES)))
        request = BurstRequest(pid, ACCESSES, 0.02, seek_ips=(never,), seek_seconds=0.05)
        with pytest.raises(CaptureError, match="did not come") as caught:
            patiently(partial(source.capture, request))
        assert caught.value.reason == "not-reached"


def test_a_cancelled_wait_ends(target: tuple[int, int, int, int]) -> None:
    pid, _, _, never = target
    with closing(ReplicaSource(pid)) as source:
        request = BurstRequest(pid, ACCESSES, 0.02, seek_ips=(never,), seek_seconds=1e9)
        canceller = threading.Timer(0.2, source.cancel)
        canceller.start()
        with pytest.raises(CaptureError) as caught:
            patiently(partial(source.capture, request))
        assert caught.value.reason == "not-reached"
        canceller.join()


def test_a_wait_ends_and_the_next_burst_is_taken(target: tuple[int, int, int, int]) -> None:
    pid, _, _, never = target
    end = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        with closing(ReplicaSource(pid)) as source:
            seek = BurstRequest(
                pid, ACCESSES, 0.02, seek_ips=(never,), seek_seconds=1e9, seek_end=end
            )
            ender = threading.Timer(0.2, os.eventfd_write, (end, 1))
            ender.start()
            with pytest.raises(CaptureError) as caught:
                patiently(partial(source.capture, seek))
            assert caught.value.reason == "not-reached"
            ender.join()
            assert patiently(partial(source.capture, BurstRequest(pid, ACCESSES))).accesses > 0
    finally:
        os.close(end)
