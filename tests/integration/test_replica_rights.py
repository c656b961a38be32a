"""Sources with few rights and little room: of any user, under limits, where memory is counted."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tracees import children, patiently, running
from waiting import PATIENCE_SECONDS

from memsampd.sampler.process.status import read_status
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

NOBODY = 65534
BUSY = ("sh", "-c", "while :; do :; done")
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, CAP_KILL = 6, 7, 19, 5
CAP_SYS_RESOURCE = 1 << 24
_SET_DUMPABLE, _DROP_FROM_BOUNDS = 4, 24
_CAPABILITY_VERSION = 0x20080522

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def observe() -> dict[str, Any]:
    """Bursts of a busy child of ours."""
    before = {pid for pid, _, _ in children(os.getpid())}  # of other tests
    with running(*BUSY) as target:
        try:
            with closing(ReplicaSource(target.pid)) as source:
                request = BurstRequest(target.pid, 2000, 1.0)
                for _ in range(3):  # some are over at once: it is just beginning
                    while patiently(lambda: source.capture(request)).accesses == 0:
                        pass
            return {
                "lives": target.poll() is None,
                "left": [
                    each
                    for each in children(os.getpid())
                    if each[0] != target.pid and each[0] not in before
                ],
            }
        except OSError as error:
            return {"error": error.errno, "lives": target.poll() is None}


def in_a_child(prepare: Callable[[], None]) -> dict[str, Any]:
    """Observe from a process of its own, which first makes itself smaller."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE_SECONDS))  # or it might hang for ever
        try:
            prepare()
            told = observe()
        except BaseException as error:
            told = {"error": repr(error)}
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    assert text, "it hung"
    told = json.loads(text)
    assert isinstance(told, dict)
    return told


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    # As a program is that was started by its user: not one that gave privileges up.
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 1)


def keep_only(*capabilities: int) -> Callable[[], None]:
    """Root with these capabilities and no others, as have programs that it starts."""

    def give_up() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            if number not in capabilities:
                libc.prctl(_DROP_FROM_BOUNDS, number, 0, 0, 0)
        mask = sum(1 << number for number in capabilities)
        low, high = mask & 0xFFFFFFFF, mask >> 32
        header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
        if libc.capset(header, struct.pack("=6I", low, low, 0, high, high, 0)) < 0:
            raise OSError(ctypes.get_errno(), "capset")
        libc.prctl(_SET_DUMPABLE, 1)  # as after an exec

    return give_up


def limit_addresses(room_bytes: int, is_hard: bool) -> Callable[[], None]:
    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + room_bytes
        hard = most if is_hard else resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))

    return limit


def assert_works(told: dict[str, Any]) -> None:
    assert told.get("error") is None
    assert told["lives"]
    assert told["left"] == []


@needs_root
@pytest.mark.parametrize(
    "capabilities",
    [
        # A replica of another user could not be killed.
        (CAP_SETUID, CAP_SETGID, CAP_SYS_PTRACE),
        # Of another user it could not be traced again: as in most containers.
        (CAP_SETUID, CAP_SETGID, CAP_KILL),
        (),
    ],
)
def test_root_with_few_capabilities(capabilities: tuple[int, ...]) -> None:
    assert_works(in_a_child(keep_only(*capabilities)))


@needs_root
def test_any_user_may_observe_a_process_of_ones_own() -> None:
    assert_works(in_a_child(become_nobody))


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_limit_of_our_address_space_is_not_the_replicas(is_hard: bool) -> None:
    if is_hard and not read_status(os.getpid()).cap_effective & CAP_SYS_RESOURCE:
        pytest.skip("we may not lift a hard limit")
    assert_works(in_a_child(limit_addresses(1 << 30, is_hard)))


@needs_root
@pytest.mark.parametrize("is_hard", [False, True])
def test_limits_of_another_user(is_hard: bool) -> None:
    """A hard one cannot be lifted: that is said, and nothing else comes of it."""

    def prepare() -> None:
        limit_addresses(1 << 30, is_hard)()
        become_nobody()

    told = in_a_child(prepare)
    if is_hard:
        assert isinstance(told["error"], int)
        assert told["lives"]
    else:
        assert_works(told)


def test_a_limit_of_file_sizes_is_no_limit_of_memory() -> None:
    assert_works(in_a_child(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))))


@contextmanager
def strict_accounting() -> Iterator[None]:
    """The kernel promises no more memory than there is, for a moment."""
    numbers = dict(
        line.split(":") for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    limit, used = (int(numbers[name].split()[0]) for name in ("CommitLimit", "Committed_AS"))
    before = OVERCOMMIT.read_text()
    if limit < used + (4 << 20):
        pytest.skip("others would be refused memory")
    try:
        OVERCOMMIT.write_text("2")
    except OSError:
        pytest.skip("cannot be set here")
    try:
        yield
    finally:
        OVERCOMMIT.write_text(before)


@needs_root
@pytest.mark.skipif(
    os.environ.get("MEMSAMPD_TEST_SETS_SYSCTLS") != "true",
    reason="sets vm.overcommit_memory for all that runs here: MEMSAMPD_TEST_SETS_SYSCTLS=true",
)
def test_where_memory_is_promised_once_only() -> None:
    with strict_accounting():
        told = observe()
    assert_works(told)
