"""Two shadows of one moment must reference the same, access for access, on real programs."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import shadowing

from memsampd.errors import CaptureError
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor

WANTED_ACCESSES = 10_000
ATTEMPTS = 200

FILLER = r"""
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <pthread.h>
#include <unistd.h>
static void *fill(void *unused)
{
    (void)unused;
    char *block = malloc(1 << 20);
    unsigned state = 1;
    for (;;) {
        size_t at = (state = state * 1664525u + 1013904223u) % (1 << 19);
        memset(block + at, (int)state, state >> 13 & 0x3fff);
        memmove(block + at / 2, block + at, 5000);
    }
    return NULL;
}
int main(int argc, char **argv)
{
    (void)argv;
    pthread_t thread;
    for (int i = 1; i < argc; i++)
        pthread_create(&thread, NULL, fill, NULL);
    puts("ready");
    fflush(stdout);
    fill(NULL);
}
"""
PYTHON_LOOP = """
print("ready", flush=True)
words = {}
while True:
    for n in range(1000):
        words[str(n)] = words.get(str(n), 0) + n
    for key in sorted(words)[:500]:
        words.pop(key)
"""
SQL = (
    "with recursive n(i) as (select 1 union all select i + 1 from n) "
    "select i, count(distinct i % 1000), sum(i * 7 % 13) from n;"
)


def twins(pid: int, every_thread: bool = False) -> int:
    """Compare twins until enough accesses were equal; how many were."""
    both = (TranslatingExecutor(), SteppingExecutor())
    source = ShadowSource(pid, both[0])
    compared = 0
    try:
        for _ in range(ATTEMPTS):
            for tid in list_threads(pid) if every_thread else (pid,):
                try:
                    first, second = source.capture_by(BurstRequest(tid, 4000, 20), both)
                except CaptureError as error:
                    assert error.reason in ("not-running", "in-syscall", "in-rseq")  # noqa: PT017
                    continue
                assert_equal(first, second)
                compared += len(first)
            if compared >= WANTED_ACCESSES:
                break
            time.sleep(0.005)
    finally:
        source.close()
    assert shadowing.traces_left(pid) == []
    return compared


def assert_equal(first: Burst, second: Burst) -> None:
    for name in ("ip", "address", "size_bytes", "is_write"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), name)
    for name in ("instructions", "prefetches", "end", "end_detail"):
        assert getattr(first, name) == getattr(second, name)


def _need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def test_python() -> None:
    with shadowing.running("/usr/bin/env", "python3", "-c", PYTHON_LOOP) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert twins(process.pid) >= WANTED_ACCESSES


@pytest.mark.parametrize("program", ["gzip", "xz"])
def test_compressors(program: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shadowing.write_data(data, 4 << 20)
    feeder = subprocess.Popen(
        ["sh", "-c", 'while cat "$0"; do :; done', data], stdout=subprocess.PIPE
    )
    with (
        feeder,
        shadowing.running(
            _need(program), "-9", "-c", stdin=feeder.stdout, stdout=subprocess.DEVNULL
        ) as process,
    ):
        assert feeder.stdout is not None
        feeder.stdout.close()
        time.sleep(0.2)
        assert twins(process.pid) >= WANTED_ACCESSES


def test_sqlite() -> None:
    with shadowing.running(_need("sqlite3"), ":memory:", SQL, stdout=subprocess.DEVNULL) as process:
        time.sleep(0.1)
        assert twins(process.pid) >= WANTED_ACCESSES


@pytest.mark.parametrize("more_threads", [0, 3])
def test_c_program(more_threads: int, tmp_path: Path) -> None:
    program = shadowing.compile_c(tmp_path, FILLER, "-O3", "-march=native")
    with shadowing.running(program, *["thread"] * more_threads) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list_threads(process.pid)) == 1 + more_threads
        assert twins(process.pid, every_thread=True) >= WANTED_ACCESSES
