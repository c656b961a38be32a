"""Holds that find a thread inside a system call: ever more seldom, and told where it notices."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest
from tracees import address_of, compile_c, patiently, running, tries
from waiting import PATIENCE_SECONDS

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

# Makes a transfer of a kind again and again, with somebody at the other end who takes or gives all,
# and counts those that were cut short. Its own end does not wait ("at once"), or the first one that
# was is the last ("until then").
TRANSFERRING = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#define BYTES (16l << 20)
#define PIECES 16
#define MESSAGES 4096 /* more than one sendmmsg takes */
#define SENT 256
#define INTO_A_PIPE "splice into a pipe"
volatile uint64_t short_ones, whole_ones;
static char bytes[BYTES];
static int ends[2], file, pipes[2];
static struct iovec piece[PIECES];
static struct msghdr whole = {.msg_iov = piece, .msg_iovlen = PIECES};
static struct mmsghdr message[MESSAGES];
static int is(const char *kind, const char *name) { return strcmp(kind, name) == 0; }
static void other_end(const char *kind)
{
    const int is_of_messages = strstr(kind, "mmsg") != NULL;
    const int gives = strncmp(kind, "recv", 4) == 0 || is(kind, INTO_A_PIPE);
    const long many = is_of_messages ? 64 : 1 << 20;
    volatile int spin = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (gives ? write(ends[1], bytes, many) > 0 : read(ends[1], bytes, many) > 0)
        for (int i = 0; is_of_messages && i < 10000; i++) spin++;
    _exit(0);
}
static long transfer(const char *kind, long *wanted)
{
    *wanted = is(kind, "sendmmsg") ? SENT : is(kind, "recvmmsg") ? MESSAGES : BYTES;
    if (is(kind, "write")) return write(ends[0], bytes, BYTES);
    if (is(kind, "writev")) return writev(ends[0], piece, PIECES);
    if (is(kind, "sendto")) return send(ends[0], bytes, BYTES, 0);
    if (is(kind, "sendmsg")) return sendmsg(ends[0], &whole, 0);
    if (is(kind, "sendmmsg")) return sendmmsg(ends[0], message, SENT, 0);
    if (is(kind, "recvfrom")) return recv(ends[0], bytes, BYTES, MSG_WAITALL);
    if (is(kind, "recvmsg")) return recvmsg(ends[0], &whole, MSG_WAITALL);
    if (is(kind, "recvmmsg")) return recvmmsg(ends[0], message, MESSAGES, 0, NULL);
    if (is(kind, "getrandom")) return getrandom(bytes, BYTES, 0);
    if (strncmp(kind, "sendfile", 8) == 0) {
        lseek(file, 0, SEEK_SET);
        return sendfile(is(kind, "sendfile") ? ends[0] : pipes[1], file, NULL, BYTES);
    }
    if (is(kind, INTO_A_PIPE)) return splice(ends[0], NULL, pipes[1], NULL, BYTES, 0);
    static long left; /* in the pipe: splice */
    if (left == 0) left = write(pipes[1], bytes, 1 << 20);
    *wanted = left;
    const long got = splice(pipes[0], NULL, ends[0], NULL, left, 0);
    left -= got > 0 ? got : 0;
    return got;
}
int main(int argc, char **argv)
{
    const char *kind = argv[1], *how = argc > 2 ? argv[2] : "";
    const int of_messages = strstr(kind, "mmsg") != NULL;
    FILE *temporary = tmpfile();
    for (int i = 0; i < PIECES; i++)
        piece[i] = (struct iovec){bytes + i * (BYTES / PIECES), BYTES / PIECES};
    for (int i = 0; i < MESSAGES; i++) {
        message[i].msg_hdr.msg_iov = malloc(sizeof *piece);
        *message[i].msg_hdr.msg_iov = (struct iovec){bytes, 64};
        message[i].msg_hdr.msg_iovlen = 1;
    }
    signal(SIGPIPE, SIG_IGN);
    file = fileno(temporary);
    if (ftruncate(file, BYTES) != 0 || pipe(pipes) != 0 ||
        socketpair(AF_UNIX, of_messages ? SOCK_DGRAM : SOCK_STREAM, 0, ends) != 0)
        return 1;
    fcntl(pipes[1], F_SETPIPE_SZ, 1 << 20);
    if (fork() == 0) {
        close(ends[0]);
        other_end(kind);
    }
    if (strstr(kind, "into a pipe") != NULL && fork() == 0) {
        ends[1] = pipes[0];
        other_end("splice");
    }
    close(ends[1]);
    if (is(how, "at once")) fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK);
    puts("ready");
    fflush(stdout);
    for (;;) {
        long wanted, got = transfer(kind, &wanted);
        if (got < 0 && errno == EAGAIN) poll(&(struct pollfd){ends[0], POLLOUT, 0}, 1, -1);
        else if (got < 0) return 1;
        else if (got < wanted) short_ones++;
        else whole_ones++;
        while (short_ones != 0 && is(how, "until then")) whole_ones++;
    }
}
"""
# Receives messages, while another thread puts, again and again, a file in the socket's place. The
# file system, which has no other file, answers nobody else who looks at the file or closes it.
LURING = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#define MESSAGES 64
static int file, receiving, place;
static void spin(int rounds) { for (volatile int i = 0; i < rounds; i++); }
static void *change(void *unused)
{
    for (;; spin(100000)) {
        dup2(file, place);
        spin(100000);
        dup2(receiving, place);
    }
}
static void receive(const char *path)
{
    static struct mmsghdr message[MESSAGES];
    static char bytes[64];
    struct iovec piece = {bytes, sizeof bytes};
    int ends[2];
    pthread_t thread;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) exit(1);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (; write(ends[1], bytes, sizeof bytes) > 0; spin(10000));
        exit(0);
    }
    for (int i = 0; i < MESSAGES; i++)
        message[i].msg_hdr = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1};
    receiving = ends[0];
    place = dup(receiving);
    if ((file = open(path, O_RDWR)) < 0) exit(1);
    pthread_create(&thread, NULL, change, NULL);
    for (;;) recvmmsg(place, message, MESSAGES, 0, NULL);
}
static void answer(int device, uint64_t unique, const void *bytes, size_t size)
{
    struct fuse_out_header head = {.len = sizeof head + size, .unique = unique};
    struct iovec pieces[] = {{&head, sizeof head}, {(void *)bytes, size}};
    if (writev(device, pieces, 2) < 0) return; /* it is not waited for any more */
}
int main(int argc, char **argv)
{
    static const struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 4096};
    static const struct fuse_attr_out attr = {.attr = {.mode = S_IFREG | 0644, .nlink = 1}};
    static const struct fuse_open_out opened;
    static char request[1 << 16], text[128];
    const struct fuse_in_header *in = (void *)request;
    const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(text, sizeof text, "fd=%d,rootmode=100644,user_id=0,group_id=0", device);
    if (device < 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("lure", argv[1], "fuse", 0, text) != 0)
        return 1;
    const pid_t target = fork();
    if (target == 0) {
        close(device);
        receive(argv[1]);
    }
    printf("%d\n", (int)target);
    fflush(stdout);
    while (read(device, request, sizeof request) > 0) {
        snprintf(text, sizeof text, "/proc/%d/task/%u", (int)target, in->pid);
        if (in->opcode == FUSE_INIT) answer(device, in->unique, &init, sizeof init);
        else if (in->opcode == FUSE_GETATTR) answer(device, in->unique, &attr, sizeof attr);
        else if (in->opcode == FUSE_OPEN) answer(device, in->unique, &opened, sizeof opened);
        else if (access(text, F_OK) == 0) answer(device, in->unique, NULL, 0);
        else if (in->opcode == FUSE_FLUSH || in->opcode == FUSE_POLL) {
            puts("asked");
            fflush(stdout);
        }
    }
    return 0;
}
"""
KINDS = (
    *("write", "writev", "sendfile", "splice", "getrandom"),
    *("sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg", "recvmmsg"),
)


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


def reader_of_short_ones(process: subprocess.Popen[str], program: Path) -> Callable[[], int]:
    """What reads how many transfers of a program were cut short, in its memory."""
    address = address_of(program, "short_ones")

    def read() -> int:
        with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return int.from_bytes(memory.read(8), "little")

    return read


@pytest.mark.parametrize("kind", KINDS)
def test_a_transfer_that_a_hold_cuts_short_is_told(kind: str, tmp_path: Path) -> None:
    program = compile_c(tmp_path, TRANSFERRING, "-no-pie")
    with running(program, kind) as process:
        assert process.stdout is not None
        process.stdout.readline()
        told, short_ones = 0, reader_of_short_ones(process, program)
        with closing(ReplicaSource(process.pid)) as source:
            for _ in tries():
                before = short_ones()
                burst = patiently(lambda: source.capture(BurstRequest(process.pid, 100)))
                if burst.cut_short:
                    told += 1
                    while short_ones() == before:  # it may not have run since
                        time.sleep(0.001)
                if told == 3:
                    break
        assert process.poll() is None


def test_a_file_in_the_place_of_a_socket_holds_nobody_up(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()

    def observe(told: IO[str], pid: int) -> None:
        with closing(ReplicaSource(pid)) as source:
            for _ in tries():
                patiently(lambda: source.capture(BurstRequest(pid, 100)))
                if select.select([told], [], [], 0)[0]:  # it was met
                    break
            patiently(lambda: source.capture(BurstRequest(pid, 100)))

    program = compile_c(tmp_path, LURING)
    with ThreadPoolExecutor(1) as pool, running(program, place) as server:
        assert server.stdout is not None
        if not (line := server.stdout.readline()):
            pytest.skip("no file system of one's own (/dev/fuse) is to be had here")
        pool.submit(observe, server.stdout, int(line)).result(PATIENCE_SECONDS)


def test_it_is_told_whatever_the_target_was_held_for(tmp_path: Path) -> None:
    """Mostly the first hold cuts it short, for which there is no burst: code is learned then."""
    program = compile_c(tmp_path, TRANSFERRING, "-no-pie")
    for _ in range(3):
        with running(program, "write", "until then") as process:
            assert process.stdout is not None
            process.stdout.readline()
            told, short_ones = 0, reader_of_short_ones(process, program)
            with closing(ReplicaSource(process.pid)) as source:
                while short_ones() == 0:
                    burst = patiently(lambda: source.capture(BurstRequest(process.pid, 100)))
                    told += burst.cut_short
            assert told > 0


@pytest.mark.parametrize(
    "words",
    [
        *(("write", "at once"), ("sendmsg", "at once"), ("splice", "at once")),
        *(("splice into a pipe",), ("sendfile into a pipe",)),
    ],
    ids=lambda words: words[0],
)
def test_transfers_that_take_what_there_is_are_cut_short_by_nobody(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    program = compile_c(tmp_path, TRANSFERRING, "-no-pie")
    with running(program, *words) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with closing(ReplicaSource(process.pid)) as source:
            for _ in range(50):
                burst = patiently(lambda: source.capture(BurstRequest(process.pid, 100)))
                assert not burst.cut_short
        assert reader_of_short_ones(process, program)() > 0
        assert process.poll() is None
