"""Holds that find a thread inside a system call: ever more seldom, and told where it notices."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tracees import address_of, compile_c, patiently, running, tries

from memsampd.errors import CaptureError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

# Looks at many descriptors of which none is ready, waits for the shortest time, and looks again: in
# calls that the kernel begins anew where they are broken off.
LOOKING = """
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>
#define MOST 4096
int main(void)
{
    static unsigned long look[MOST / 64];
    struct rlimit limit;
    int ends[2], last = 0;
    if (pipe(ends) != 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    limit.rlim_cur = limit.rlim_max < MOST ? limit.rlim_max : MOST;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    while (last >= 0 && last + 1 < MOST) last = dup(ends[0]);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct timespec wait = {0, 1000};
        memset(look, 0xff, limit.rlim_cur / 8);
        look[0] &= ~0x3ful; /* standard streams, and the end that can be written to */
        look[0] |= 1ul << ends[0];
        syscall(SYS_pselect6, limit.rlim_cur, look, NULL, NULL, &wait, NULL);
    }
}
"""
# Within the 0.2 s that it is tried for: pauses of 0.5, 1, 2, 4, and then 8 ms lie between.
MOST_STOPS = 30

# Sends a file again and again, to somebody who takes it, and counts transfers that were cut short.
SENDING = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>
#define BYTES (64 << 20)
volatile uint64_t short_ones;
static char bytes[1 << 20];
int main(void)
{
    int ends[2];
    FILE *file = tmpfile();
    if (file == NULL || ftruncate(fileno(file), BYTES) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 1;
    if (fork() == 0) {
        close(ends[0]);
        while (read(ends[1], bytes, sizeof bytes) > 0) {}
        _exit(0);
    }
    close(ends[1]);
    puts("ready");
    fflush(stdout);
    for (;;) {
        lseek(fileno(file), 0, SEEK_SET);
        const ssize_t sent = sendfile(ends[0], fileno(file), NULL, BYTES);
        if (sent <= 0) return 1;
        short_ones += sent < BYTES;
    }
}
"""


def test_a_thread_that_is_caught_inside_calls_is_stopped_ever_more_seldom(tmp_path: Path) -> None:
    """Each stop breaks the call off: they must not follow each other at once."""
    with running(compile_c(tmp_path, LOOKING)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with closing(ReplicaSource(process.pid)) as source:
            in_vain = 0
            for number in tries():
                try:
                    cost = source.capture(BurstRequest(process.pid, 100, 60.0)).cost
                except CaptureError as error:
                    cost = error.cost
                if number > 0:  # the first one learns code, too
                    assert cost.stops <= MOST_STOPS
                    in_vain += cost.stops > MOST_STOPS // 2
                if in_vain == 3:
                    break
        assert process.poll() is None


def test_a_transfer_that_a_hold_cuts_short_is_told(tmp_path: Path) -> None:
    program = compile_c(tmp_path, SENDING, "-no-pie")
    with running(program) as process:
        assert process.stdout is not None
        process.stdout.readline()
        told = 0
        with closing(ReplicaSource(process.pid)) as source:
            for _ in tries():
                told += patiently(lambda: source.capture(BurstRequest(process.pid, 100))).cut_short
                if told == 3:
                    break
        with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address_of(program, "short_ones"))
            assert int.from_bytes(memory.read(8), "little") >= told
        assert process.poll() is None
