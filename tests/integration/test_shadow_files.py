"""Files of a shadow: it reads what its target will read, writes nothing, and nobody notices."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import shadowing

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.shadow.emulation import emulation_of
from memsampd.sampler.shadow.executors import ShadowExecutor
from memsampd.sampler.shadow.snapshots import Shadow, Snapshots
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor

ACCESSES = {"step": 6000, "translate": 300_000}
TRANSIENT = ("in-syscall", "not-running", "in-rseq")
INPUT_BYTES = 20_011

# Makes the calls of one kind over and over, with some work between. What the first, native round
# saw is kept, and any round that sees something else, in target or shadow, ends in SIGILL.
PROGRAM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct seen { size_t count; long value[512]; };
static volatile sig_atomic_t done;
static volatile uint64_t sink[64];
static const char *input, *output;
static volatile size_t huge = 1 << 30;
static int in, out, appended, both, null, odd;
static unsigned char buffer[1 << 16] __attribute__((aligned(4096))), *hole;

static void work(int turns) { for (int i = 0; i < turns; i++) sink[i % 64] += (uint64_t)i; }
static void note(struct seen *s, long value)
{
    if (s->count == sizeof s->value / sizeof *s->value) abort();
    s->value[s->count++] = value;
}
/* What a call returned, and what is in the buffer now. */
static void note_data(struct seen *s, long value)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof buffer / 8; i += 61) sum = sum * 31 + ((uint64_t *)buffer)[i];
    for (long i = 0; i < value && i < 200; i++) sum = sum * 31 + buffer[i];
    note(s, value); note(s, (long)sum);
}

static void pieces(struct seen *s)
{
    note(s, lseek(in, 0, SEEK_SET));
    for (long got = 1; got > 0; work(200)) note_data(s, got = read(in, buffer, 3000));
}
static void places(struct seen *s)
{
    static const long place[] = {0, 1, 4095, 20000, 20010, 20011, 1L << 40};
    struct iovec two[3] = {{buffer + 100, 10}, {buffer, 0}, {buffer + 4090, 4000}};
    for (size_t i = 0; i < sizeof place / sizeof *place; i++)
        note_data(s, pread(in, buffer, 50, place[i]));
    work(200);
    note(s, lseek(in, -100, SEEK_END));
    note(s, read(in, buffer, 0));
    note_data(s, read(in, buffer, huge)); /* there is no such room, nor need there be */
    note(s, lseek(in, 0, SEEK_CUR));
    note(s, lseek(in, -10000, SEEK_CUR));
    note_data(s, readv(in, two, 3));
    note(s, lseek(in, 30000, SEEK_SET));
    note_data(s, read(in, buffer, 10));
    note_data(s, pread(both, buffer, 10, 4));
    note(s, lseek(in, 0, SEEK_CUR));
}
static void nothing(struct seen *s)
{
    struct iovec two[2] = {{buffer, 10}, {buffer + 4090, 4000}};
    work(200);
    note(s, write(null, buffer, sizeof buffer));
    note(s, write(null, buffer, 0));
    note(s, writev(null, two, 2));
    note(s, pwrite(null, buffer, 5, 1000));
}
static void writes(struct seen *s)
{
    struct iovec two[2] = {{buffer, 10}, {buffer + 4090, 4000}};
    note(s, lseek(out, 0, SEEK_SET));
    work(200);
    note(s, write(out, buffer, 5000));
    note(s, write(out, buffer, 0));
    note(s, writev(out, two, 2));
    note(s, lseek(out, 0, SEEK_CUR));
    note(s, pwrite(out, buffer, 100, 50));
    note(s, lseek(out, -5, SEEK_CUR));
    note(s, lseek(out, 2000, SEEK_SET));
    note_data(s, pread(in, buffer, 10, 4));
}
static void appends(struct seen *s)
{
    work(2000);
    note(s, write(appended, buffer, 3));
    note(s, pwrite(appended, buffer, 2, 0));
}
static void copies(struct seen *s)
{
    note(s, lseek(in, 0, SEEK_SET));
    note(s, lseek(out, 0, SEEK_SET));
    for (long got; (got = read(in, buffer, 4096)) > 0; work(200)) note(s, write(out, buffer, got));
}

/* What must end a burst. */
static void rereads(struct seen *s)
{
    note(s, pwrite(both, "abc", 3, 0));
    note_data(s, pread(both, buffer, 3, 0));
}
static void rereads_elsewhere(struct seen *s)
{
    note(s, pwrite(out, "abc", 3, 0));
    note_data(s, pread(odd, buffer, 3, 0));
}
static void sees_end(struct seen *s)
{
    note(s, pwrite(both, "abc", 3, 0));
    note(s, lseek(both, 0, SEEK_END));
}
static void finds_end(struct seen *s)
{
    note(s, write(appended, "a", 1));
    note(s, lseek(appended, 0, SEEK_CUR) > 0);
}
static void shares_offset(struct seen *s)
{
    note(s, lseek(in, 0, SEEK_SET));
    note_data(s, read(in, buffer, 10));
    note_data(s, read(odd, buffer, 10));
}
static void reads_odd(struct seen *s) { note(s, read(odd, buffer, 512) > 512); }
static void writes_odd(struct seen *s) { note(s, write(odd, buffer, 512) > 512); }
static void seeks_odd(struct seen *s) { note(s, lseek(odd, 0, SEEK_SET)); }
static void reads_hole(struct seen *s)
{
    memset(hole - 10, 7, 10);
    note(s, pread(in, hole - 10, 20, 0));
}
static void writes_hole(struct seen *s) { note(s, write(null, hole - 10, 20)); }
static void reads_too_far(struct seen *s) { note(s, pread(in, buffer, 10, -1)); }
static void seeks_too_far(struct seen *s) { note(s, lseek(in, -1, SEEK_SET)); }
static void closes(struct seen *s) { note(s, close(open(input, O_RDONLY))); }
static void writes_input(struct seen *s) { note(s, write(in, buffer, 1)); }
static void reads_output(struct seen *s) { note(s, read(out, buffer, 1)); }

static int pipe_end(int end) { int ends[2]; return pipe2(ends, O_NONBLOCK) < 0 ? -1 : ends[end]; }
static int a_zero(void) { return open("/dev/zero", O_RDWR); }
static int a_null(void) { return open("/dev/null", O_RDWR); }
static int a_folder(void) { return open("/", O_RDONLY | O_DIRECTORY); }
static int a_pipe(void)
{
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) < 0 || write(ends[1], buffer, 60000) != 60000) abort();
    return ends[0];
}
static int a_sink(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) < 0) abort();
    shutdown(ends[0], SHUT_RD);
    return ends[1];
}
static int a_terminal(void) { return open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK); }
static int a_status(void) { return open("/proc/self/status", O_RDONLY); }
static int a_memory_file(void) { return memfd_create("odd", 0); }
static int a_direct_file(void) { return open(input, O_RDONLY | O_DIRECT); }
static int a_duplicate(void) { return dup(in); }
static int an_output(void) { return open(output, O_RDONLY); }
static int a_mapped_file(void)
{
    int f = open("mapped", O_RDWR | O_CREAT, 0600);
    if (ftruncate(f, 4096) < 0) abort();
    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, f, 0);
    return f;
}
static int a_limited_file(void)
{
    struct rlimit some = {1 << 30, 1 << 30};
    setrlimit(RLIMIT_FSIZE, &some);
    return open("limited", O_RDWR | O_CREAT | O_APPEND, 0600);
}

static const struct {
    const char *name; void (*round)(struct seen *); int (*odd)(void);
} rounds[] = {
    {"pieces", pieces, NULL}, {"places", places, NULL}, {"nothing", nothing, NULL},
    {"writes", writes, NULL}, {"appends", appends, NULL}, {"copies", copies, NULL},
    {"rereads", rereads, NULL}, {"rereads elsewhere", rereads_elsewhere, an_output},
    {"sees end", sees_end, NULL}, {"finds end", finds_end, NULL},
    {"shares offset", shares_offset, a_duplicate},
    {"zero", reads_odd, a_zero}, {"null", reads_odd, a_null}, {"seeks null", seeks_odd, a_null},
    {"writes zero", writes_odd, a_zero}, {"folder", reads_odd, a_folder},
    {"pipe", reads_odd, a_pipe}, {"socket", writes_odd, a_sink},
    {"terminal", reads_odd, a_terminal}, {"status", reads_odd, a_status},
    {"memory file", reads_odd, a_memory_file}, {"direct", reads_odd, a_direct_file},
    {"mapped", writes_odd, a_mapped_file}, {"limited", writes_odd, a_limited_file},
    {"reads hole", reads_hole, NULL}, {"writes hole", writes_hole, NULL},
    {"reads too far", reads_too_far, NULL}, {"seeks too far", seeks_too_far, NULL},
    {"closes", closes, NULL}, {"writes input", writes_input, NULL},
    {"reads output", reads_output, NULL},
};

static void finish(int number) { (void)number; done = 1; }
int main(int argc, char **argv)
{
    static struct seen first, now;
    void (*chosen)(struct seen *) = NULL;
    (void)argc;
    input = argv[2]; output = argv[3];
    in = open(input, O_RDONLY);
    out = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    appended = open("appended", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    both = open("both", O_RDWR | O_CREAT | O_TRUNC, 0600);
    null = open("/dev/null", O_WRONLY);
    if (in < 0 || out < 0 || write(both, "0123456789abcdef", 16) != 16) abort();
    hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(hole += 4096, 4096);
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++)
        if (strcmp(argv[1], rounds[i].name) == 0) {
            chosen = rounds[i].round;
            odd = rounds[i].odd ? rounds[i].odd() : -1;
        }
    signal(SIGTERM, finish);
    chosen(&now); /* the buffer is then as in every other round */
    chosen(&first);
    puts("ready"); fflush(stdout);
    while (!done) {
        work(700);
        memset(&now, 0, sizeof now);
        chosen(&now);
        if (memcmp(&first, &now, sizeof now) != 0) __builtin_trap();
    }
    puts("right");
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shadowing.compile_c(tmp_path_factory.mktemp("files"), PROGRAM)


@pytest.fixture(params=[SteppingExecutor, TranslatingExecutor])
def executor(request: pytest.FixtureRequest) -> ShadowExecutor:
    made: ShadowExecutor = request.param()
    return made


def random_bytes(size_bytes: int) -> bytes:
    return np.random.default_rng(3).bytes(size_bytes)


@contextmanager
def repeating(program: Path, name: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The program at work; in the end it must still see what it saw at first."""
    (folder / "input").write_bytes(random_bytes(INPUT_BYTES))
    with shadowing.running(program, name, "input", "output", cwd=folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert shadowing.traces_left(process.pid) == []
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "right\n"
        assert process.wait() == 0


def capture(source: ShadowSource, request: BurstRequest) -> Burst:
    """A burst, at last: a thread that is mostly in system calls is rarely caught outside."""
    for _ in range(100):
        try:
            return source.capture(request)
        except CaptureError as error:
            assert error.reason in TRANSIENT  # noqa: PT017
            time.sleep(0.01)
    raise AssertionError("never caught outside of a system call")


def burst_of(pid: int, executor: ShadowExecutor, accesses: int = 0) -> Burst:
    descriptors = os.listdir("/proc/self/fd")
    with closing(ShadowSource(pid, executor)) as source:
        burst = capture(source, BurstRequest(pid, accesses or ACCESSES[executor.name], 30))
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors) + 4  # of the executor
    return burst


def taken(snapshots: Snapshots, pid: int) -> Shadow:
    (shadow,) = snapshots.take(pid, 1, 30.0).shadows
    return shadow


def offset_of(identity: tuple[object, ...], number: int) -> int:
    """Where a descriptor stands according to an emulation's identity."""
    files = identity[9]
    assert isinstance(files, bytes)
    for record in struct.iter_unpack("=iiqQQII", files):
        if record[0] == number:
            return int(record[2])
    raise AssertionError(f"descriptor {number} is not known")


@pytest.mark.parametrize("name", ["pieces", "places", "nothing", "writes", "appends", "copies"])
def test_calls_on_files_return_what_the_kernel_returns(
    program: Path, name: str, executor: ShadowExecutor, tmp_path: Path
) -> None:
    with repeating(program, name, tmp_path) as process:
        burst = burst_of(process.pid, executor)
        assert (burst.end, burst.end_detail) == (BurstEnd.FULL, "")
        assert burst.emulated_calls > 0


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("rereads", "pread64"),
        ("rereads elsewhere", "pread64"),
        ("sees end", "lseek"),
        ("finds end", "lseek"),
        ("shares offset", "read lseek"),
        *((name, "read") for name in ("zero", "null", "folder", "pipe", "terminal", "status")),
        *((name, "read") for name in ("memory file", "direct", "reads output")),
        *((name, "write") for name in ("writes zero", "socket", "mapped", "limited")),
        *((name, "write") for name in ("writes hole", "writes input")),
        *((name, "lseek") for name in ("seeks null", "seeks too far")),
        *((name, "pread64") for name in ("reads hole", "reads too far")),
        ("closes", "openat close"),
    ],
)
def test_other_calls_end_the_burst(
    program: Path, name: str, calls: str, executor: ShadowExecutor, tmp_path: Path
) -> None:
    with repeating(program, name, tmp_path) as process:
        burst = burst_of(process.pid, executor)
        assert burst.end is BurstEnd.SYSCALL
        assert burst.end_detail in calls.split()


def test_a_call_that_ends_the_burst_leaves_memory_as_it_was(
    program: Path, executor: ShadowExecutor, tmp_path: Path
) -> None:
    with (
        repeating(program, "reads hole", tmp_path) as process,
        closing(Snapshots(process.pid)) as snapshots,
    ):
        shadow = taken(snapshots, process.pid)
        execution = executor.run(shadow, 10**6, 30.0)
        assert execution.end_detail == "pread64"
        maps = Path(f"/proc/{shadow.pid}/maps").read_text().splitlines()
        found = set()
        with Path(f"/proc/{shadow.pid}/mem").open("rb", buffering=0) as memory:
            for line in maps:
                with suppress(OSError, OverflowError):  # [vsyscall] and its like
                    memory.seek(int(line.split("-")[1].split()[0], 16) - 10)
                    found.add(memory.read(10))
        assert b"\7" * 10 in found
        assert random_bytes(INPUT_BYTES)[:10] not in found
        snapshots.end(shadow)


@pytest.mark.parametrize("name", ["pieces", "places", "writes", "copies"])
def test_translated_and_stepped_shadows_reference_the_same(
    program: Path, name: str, tmp_path: Path
) -> None:
    executors = (TranslatingExecutor(), SteppingExecutor())
    with (
        repeating(program, name, tmp_path) as process,
        closing(ShadowSource(process.pid, executors[0])) as source,
    ):
        calls = 0
        while calls == 0:
            try:
                first, second = source.capture_by(BurstRequest(process.pid, 4000, 20), executors)
            except CaptureError as error:
                assert error.reason in TRANSIENT  # noqa: PT017
                continue
            for column in ("ip", "address", "size_bytes", "is_write"):
                np.testing.assert_array_equal(getattr(first, column), getattr(second, column))
            assert first.instructions == second.instructions
            assert first.end is second.end is BurstEnd.FULL
            calls = second.emulated_calls  # the other goes on to the end of its last record


# Copies a file in pieces, and says how far it has come where that matters.
COPYING = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
static volatile uint64_t sink[64];
int main(int argc, char **argv)
{
    static char piece[1009];
    int in = open(argv[1], O_RDONLY), out = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (argc > 3) unlink(argv[1]);
    puts("ready"); fflush(stdout);
    for (long got; (got = read(in, piece, sizeof piece)) > 0;) {
        for (int i = 0; i < 100000; i++) sink[i % 64] += (uint64_t)piece[i % got];
        if (write(out, piece, got) != got) return 1;
    }
    puts("copied");
    return 0;
}
"""


@pytest.mark.parametrize("deleted", [(), ("deleted",)])
def test_a_target_s_files_are_as_without_us(
    deleted: tuple[str, ...], executor: ShadowExecutor, tmp_path: Path
) -> None:
    copier = shadowing.compile_c(tmp_path, COPYING)
    data = random_bytes(5_000_000)
    (tmp_path / "in").write_bytes(data)
    bursts = calls = 0
    with shadowing.running(copier, tmp_path / "in", tmp_path / "out", *deleted) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with closing(ShadowSource(process.pid, executor)) as source:
            while process.poll() is None and bursts < 8:
                burst = capture(source, BurstRequest(process.pid, 800_000, 0.3))
                assert burst.end in (BurstEnd.FULL, BurstEnd.DEADLINE)
                bursts += 1
                calls += burst.emulated_calls
        assert process.stdout.read() == "copied\n"
    assert (tmp_path / "out").read_bytes() == data
    assert bursts > 2
    if executor.name == "translate":
        assert calls > 0


# Reads ten pieces between two calls that nobody can answer.
TENS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile unsigned sink;
static char piece[100];
int main(int argc, char **argv)
{
    int in = open(argv[1], O_RDONLY);
    (void)argc;
    printf("%d %lx\n", in, (unsigned long)piece); fflush(stdout);
    for (;;) {
        for (int i = 0; i < 10; i++) {
            if (read(in, piece, sizeof piece) != sizeof piece) lseek(in, 0, SEEK_SET);
            for (unsigned n = 0; n < 3000; n++) sink += n;
        }
        syscall(SYS_times, 0);
    }
}
"""


def test_a_run_goes_on_from_an_identity(tmp_path: Path) -> None:
    data = random_bytes(50_000_000)
    (tmp_path / "in").write_bytes(data)
    with shadowing.running(shadowing.compile_c(tmp_path, TENS), tmp_path / "in") as process:
        assert process.stdout is not None
        number, piece = (int(text, 16) for text in process.stdout.readline().split())
        with closing(Snapshots(process.pid)) as snapshots:
            shadow = taken(snapshots, process.pid)
            begun = emulation_of(shadow)
            assert begun is not None
            runner = _core.NativeRunner()
            runner.emulate(begun)
            assert runner.identity() == begun
            how, ip, *_ = runner.run(shadow.pid, 0, time.monotonic() + 10)
            first = runner.identity()
            assert how == "call"
            assert first is not None
            other = _core.NativeRunner()
            other.emulate(first)
            how, *_ = other.run(shadow.pid, ip + 2, time.monotonic() + 10)
            second = other.identity()
            assert how == "call"
            assert second is not None
            assert offset_of(second, number) - offset_of(first, number) == 1000
            assert offset_of(begun, number) < offset_of(first, number)
            assert runner.identity() == first
            with Path(f"/proc/{shadow.pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(piece)
                end = offset_of(second, number)
                assert memory.read(100) == data[end - 100 : end]
            snapshots.end(shadow)
            assert shadow.files.for_core() == b""
            other.emulate(None)
            assert other.identity() is None


@contextmanager
def compressing(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """gzip at work for some seconds; what it makes is right in the end."""
    shadowing.write_data(folder / "corpus", 30_000_000)
    with (
        (folder / "corpus.gz").open("wb") as compressed,
        shadowing.running("gzip", "-c", folder / "corpus", stdout=compressed) as process,
    ):
        time.sleep(0.1)
        yield process
        assert process.wait() == 0
    plain = subprocess.run(
        ["gzip", "-dc", str(folder / "corpus.gz")], check=True, capture_output=True
    ).stdout
    assert plain == (folder / "corpus").read_bytes()


def test_bursts_of_gzip_become_full(tmp_path: Path) -> None:
    with (
        compressing(tmp_path) as process,
        closing(ShadowSource(process.pid, TranslatingExecutor())) as source,
    ):
        for _ in range(5):
            burst = capture(source, BurstRequest(process.pid, 4_000_000, 10))
            assert (burst.end, burst.end_detail) == (BurstEnd.FULL, "")


def test_what_reads_is_timed(tmp_path: Path) -> None:
    """Up to where it goes over to other code, as it does where it reads."""
    with (
        compressing(tmp_path) as process,
        closing(ShadowSource(process.pid, TranslatingExecutor())) as source,
    ):
        request = BurstRequest(process.pid, 1_000_000, 10, measure_rate=True)
        bursts = [capture(source, request) for _ in range(8)]
    assert {burst.end for burst in bursts} == {BurstEnd.FULL}
    assert max(burst.emulated_calls for burst in bursts) > 0
    assert max(burst.twin.accesses for burst in bursts if burst.twin is not None) > 50_000
