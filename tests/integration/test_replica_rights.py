"""Sources with few rights and little room: of any user, under limits, where memory is counted."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import resource
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from groups import control_group, join
from tracees import address_of, children, compile_c, patiently, rows_from, running
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.daemon.accesses import ReplicaTrial
from memsampd.errors import CaptureError
from memsampd.sampler.process.cgroup import read_limits
from memsampd.sampler.process.status import list_threads, read_status
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.precedence import try_precedence
from memsampd.sampler.replica.probe import probe
from memsampd.sampler.replica.source import ReplicaSource

NOBODY = 65534
BUSY = ("sh", "-c", "while :; do :; done")
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, CAP_KILL, CAP_SYS_NICE = 6, 7, 19, 5, 23
OF_ANOTHER_USER = (CAP_SETUID, CAP_SETGID, CAP_SYS_PTRACE, CAP_KILL)
CAP_SYS_RESOURCE = 1 << 24
_SET_DUMPABLE, _DROP_FROM_BOUNDS = 4, 24
_CAPABILITY_VERSION = 0x20080522

# Writes to a place if it sees that it is stepped.
LOOKING_AT_FLAGS = """
char trapped;
int main(void)
{
    for (;;)
        __asm__ volatile("pushfq; popq %%rax; testb $1, %%ah; jz 1f; movb $0, trapped; 1:"
                         ::: "rax", "cc", "memory");
}
"""

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
                features = source.features()
            return {
                "can_keep": features["can_keep"],
                "file_limit_bytes": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
                "lives": target.poll() is None,
                "left": [
                    each
                    for each in children(os.getpid())
                    if each[0] != target.pid and each[0] not in before
                ],
            }
        except OSError as error:
            return {"error": error.errno, "lives": target.poll() is None}


def in_a_child(
    prepare: Callable[[], None], tell: Callable[[], dict[str, Any]] = observe
) -> dict[str, Any]:
    """Observe from a process of its own, which first makes itself smaller."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE_SECONDS))  # or it might hang for ever
        try:
            prepare()
            told = tell()
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
        # Of another user it cannot be moved, nor go first.
        OF_ANOTHER_USER,
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
    told = in_a_child(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1)))
    assert_works(told)
    assert told["can_keep"] == observe()["can_keep"]
    assert told["file_limit_bytes"] == 4096  # for what we record, and whom we start


def test_under_a_limit_of_file_sizes_no_program_sees_that_it_is_stepped(tmp_path: Path) -> None:
    program = compile_c(tmp_path, LOOKING_AT_FLAGS, "-no-pie")

    def tell() -> dict[str, Any]:
        with running(program) as target:
            rows = rows_from(target.pid, "stepped", 100)
        return {"seen": bool((rows.address == address_of(program, "trapped")).any())}

    told = in_a_child(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1)), tell)
    assert told == {"seen": False}


@needs_root
def test_a_hard_limit_of_file_sizes_is_told() -> None:
    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        become_nobody()

    assert in_a_child(prepare) == {"error": errno.EFBIG, "lives": True}


def require_real_time() -> None:
    def prepare() -> None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

    if in_a_child(prepare, dict) != {}:
        pytest.skip("no real-time priority is to be had here")


def where_it_waits() -> dict[str, Any]:
    """On how many CPUs a burst's thread may run that waits for its target to come somewhere."""
    with running(*BUSY) as target, closing(ReplicaSource(target.pid)) as source:

        def seek() -> None:
            with suppress(CaptureError):
                source.capture(request)

        def polling() -> list[int]:
            calls = {
                tid: Path(f"/proc/self/task/{tid}/syscall").read_text().split()[0]
                for tid in list_threads(os.getpid())
            }
            return [tid for tid, number in calls.items() if number == "7"]

        patiently(lambda: source.capture(BurstRequest(target.pid, 2000)))
        request = BurstRequest(target.pid, 2000, seek_ips=(0x1000,), seek_seconds=1e9)
        seeking = threading.Thread(target=seek)
        seeking.start()
        wait_for(polling)
        cpus = os.sched_getaffinity(polling()[0])
        source.cancel()
        seeking.join()
        return {"cpus": len(cpus)}


@needs_root
@pytest.mark.parametrize("may_move", [True, False])
def test_a_tracer_does_not_go_where_its_replica_cannot(may_move: bool) -> None:
    if may_move:
        require_real_time()  # by the same capability
    nice = (CAP_SYS_NICE,) if may_move else ()
    told = in_a_child(keep_only(*OF_ANOTHER_USER, *nice), where_it_waits)
    assert told == {"cpus": 1 if may_move else len(os.sched_getaffinity(0))}


def test_after_a_burst_a_replica_goes_on_as_memsampd_was_started() -> None:
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + 7, 19)

    def prepare() -> None:
        os.nice(7)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def tell() -> dict[str, Any]:
        with running(*BUSY) as target, closing(ReplicaSource(target.pid)) as source:
            patiently(lambda: source.capture(BurstRequest(target.pid, 2000)))
            replica = source.process()
            return {
                "niceness": os.getpriority(os.PRIO_PROCESS, replica),
                "policy": os.sched_getscheduler(replica),
            }

    assert in_a_child(prepare, tell) == {"niceness": niceness, "policy": os.SCHED_BATCH}


@needs_root
def test_a_replica_is_not_of_the_real_time_rank_of_who_ends_its_holds() -> None:
    require_real_time()

    def tell() -> dict[str, Any]:
        with running("sleep", "1000000") as target:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            with closing(ReplicaSource(target.pid)) as source:
                return {"policy": os.sched_getscheduler(source.process())}

    assert in_a_child(lambda: None, tell) == {"policy": os.SCHED_OTHER}


@needs_root
@pytest.mark.parametrize("rank", [1, 2])
def test_real_time_takes_a_rank_for_the_replica_and_one_for_its_tracer(rank: int) -> None:
    if not read_status(os.getpid()).cap_effective & CAP_SYS_RESOURCE:
        pytest.skip("we may not lift a hard limit")
    require_real_time()

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_RTPRIO, (rank, rank))
        keep_only()()

    def tell() -> dict[str, Any]:
        with running("sleep", "1000000") as target, closing(ReplicaSource(target.pid)) as source:
            return {"is_real_time": try_precedence(source.process()).is_real_time}

    assert in_a_child(prepare, tell) == {"is_real_time": rank == 2}


without_quota = pytest.mark.skipif(
    read_limits(os.getpid()).cpus is not None, reason="there is a quota around all tests"
)
QUOTAS = {
    1: {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "90000"},
    2: {"cpu.max": "90000 100000"},
}


def said_of_priority(max_stop_seconds: float = 0.005) -> dict[str, Any]:
    """What the doctor and the start of an observation say of priority and quotas."""
    notes: list[str] = []
    logger, handler = logging.getLogger("memsampd"), logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    trial = ReplicaTrial()
    trial.refusal(os.getpid(), max_stop_seconds)
    trial.close()
    found = {name: works for name, works, _ in probe()}
    return {
        "priority": found["replica priority"],
        "quota": found["replica quota"],
        "notes": [each.partition(":")[0] for each in notes],
    }


@needs_root
@without_quota
@pytest.mark.parametrize("version", QUOTAS)
@pytest.mark.parametrize(
    ("is_first", "max_stop_seconds", "lacks"),
    [
        (True, 0.02, ""),
        (True, 0.05, "no real-time priority for holds of more than 20 ms"),
        (False, 0.005, "no real-time priority"),
    ],
)
def test_a_quota_of_our_own_is_told_where_no_real_time_priority_helps(
    is_first: bool, max_stop_seconds: float, lacks: str, version: int
) -> None:
    if is_first:
        require_real_time()
    nice = (CAP_SYS_NICE,) if is_first else ()
    with control_group(version, "cpu") as group:
        for name, text in QUOTAS[version].items():
            (group / name).write_text(text)
        real_time = group / "cpu.rt_runtime_us"
        if real_time.exists():  # a new group has none
            real_time.write_text("100000")

        def prepare() -> None:
            join(group, os.getpid())
            keep_only(*OF_ANOTHER_USER, *nice)()

        told = in_a_child(prepare, partial(said_of_priority, max_stop_seconds))
    note = f"memsampd has 0.9 CPUs at most, granted every 100 ms, and {lacks}"
    notes = [note] if lacks else []
    assert told == {"priority": is_first, "quota": is_first, "notes": notes}


@needs_root
@without_quota
def test_without_a_quota_nothing_is_said_at_the_start() -> None:
    told = in_a_child(keep_only(*OF_ANOTHER_USER), said_of_priority)
    assert told == {"priority": False, "quota": True, "notes": []}


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
