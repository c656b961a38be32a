"""Files that a process has open: found, held and given back without anybody noticing.

The process is the test itself, so all that is seen is real.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from memsampd import _core
from memsampd.sampler.shadow.files import (
    DESCRIPTORS_MAXIMUM,
    FILES_MAXIMUM,
    FdInfo,
    FilePlan,
    OpenFiles,
    TargetFiles,
    local_mounts,
    parse_fdinfo,
)

SHADOW = 12345


@dataclass
class Record:
    """``struct open_file`` of the native core."""

    number: int
    descriptor: int
    offset: int
    device: int
    inode: int
    flags: int
    marks: int


def records(files: OpenFiles) -> dict[int, Record]:
    unpacked = (Record(*fields) for fields in struct.iter_unpack("=iiqQQII", files.for_core()))
    return {record.number: record for record in unpacked}


def at_stop(plan: FilePlan) -> bytes:
    """What the native core reads while the target is stopped."""
    texts = b""
    for (descriptor,) in struct.iter_unpack("=i", plan.for_core()):
        try:
            text = os.pread(descriptor, _core.FDINFO_BYTES - 1, 0)
        except OSError:
            text = b""
        texts += text.ljust(_core.FDINFO_BYTES, b"\0")
    return texts


def found() -> OpenFiles:
    plan = TargetFiles().plan(os.getpid())
    return plan.settle(at_stop(plan), [SHADOW])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def opened(data: Path) -> Iterator[int]:
    descriptor = os.open(data, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_a_regular_file_is_found_where_it_stands(data: Path, opened: int) -> None:
    os.lseek(opened, 4, os.SEEK_SET)
    os.utime(data, (1, 1))
    files = found()
    record = records(files)[opened]
    status = data.stat()
    assert (record.offset, record.marks) == (4, 0)
    assert (record.device, record.inode) == (status.st_dev, status.st_ino)
    assert record.flags & os.O_ACCMODE == os.O_RDWR
    assert os.pread(record.descriptor, 100, 0) == b"0123456789"
    os.lseek(record.descriptor, 9, os.SEEK_SET)
    assert os.lseek(opened, 0, os.SEEK_CUR) == 4
    assert data.stat().st_atime == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(record.descriptor, b"x")
    files.release(SHADOW)


def test_what_is_only_written_is_not_opened(data: Path) -> None:
    descriptor = os.open(data, os.O_WRONLY | os.O_APPEND)
    files = found()
    record = records(files)[descriptor]
    assert record.flags & os.O_APPEND
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(record.descriptor, 1, 0)
    files.release(SHADOW)
    os.close(descriptor)


def test_of_devices_only_dev_null_is_found_where_it_is_written() -> None:
    paths = ("/dev/null", "/dev/null", "/dev/zero")
    flags = (os.O_WRONLY, os.O_RDONLY, os.O_RDWR)
    numbers = [os.open(path, flag) for path, flag in zip(paths, flags, strict=True)]
    files = found()
    known = records(files)
    assert [number in known for number in numbers] == [True, False, False]
    assert (known[numbers[0]].descriptor, known[numbers[0]].marks) == (-1, _core.FILE_IS_NULL)
    files.release(SHADOW)
    for number in numbers:
        os.close(number)


def test_what_is_no_local_file_is_left_alone(tmp_path: Path, data: Path) -> None:
    with ExitStack() as stack:
        ends = os.pipe()
        os.mkfifo(tmp_path / "pipe")
        sockets = socket.socketpair()
        numbers = [
            *ends,
            *(each.detach() for each in sockets),
            os.open(tmp_path / "pipe", os.O_RDWR),
            os.open("/proc/self/status", os.O_RDONLY),
            os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY),
            os.open(data, os.O_PATH),
            os.open(data, os.O_RDONLY | os.O_DIRECT),
            os.memfd_create("memory"),
        ]
        for number in numbers:
            stack.callback(os.close, number)
        files = found()
        assert records(files).keys().isdisjoint(numbers)
        files.release(SHADOW)


def test_a_lease_is_not_broken(opened: int, data: Path) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, _: told.append(number))
    descriptor = os.open(data, os.O_RDONLY)
    try:
        os.close(opened)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        files = found()
        assert descriptor not in records(files)
        files.release(SHADOW)
        assert told == []
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)
        assert os.open(data, os.O_RDWR) == opened  # as the fixture closes it


def test_a_descriptor_that_has_become_another_file_is_left_alone(
    opened: int, data: Path, tmp_path: Path
) -> None:
    plan = TargetFiles().plan(os.getpid())
    (tmp_path / "other").write_bytes(b"other")
    other = os.open(tmp_path / "other", os.O_RDWR)
    os.dup2(other, opened)
    os.close(other)
    data.unlink()  # so that its number could be given away if nobody held it
    (tmp_path / "third").write_bytes(b"third")
    files = plan.settle(at_stop(plan), [SHADOW])
    assert opened not in records(files)
    files.release(SHADOW)


def test_a_descriptor_that_was_closed_is_left_alone(opened: int, data: Path) -> None:
    number = os.dup(opened)
    plan = TargetFiles().plan(os.getpid())
    os.close(number)
    files = plan.settle(at_stop(plan), [SHADOW])
    assert number not in records(files)
    assert opened in records(files)
    files.release(SHADOW)


def test_a_file_that_was_opened_anew_for_writing_is_not_read(data: Path) -> None:
    number = os.open(data, os.O_RDONLY)
    plan = TargetFiles().plan(os.getpid())
    again = os.open(data, os.O_WRONLY)
    os.dup2(again, number)
    files = plan.settle(at_stop(plan), [SHADOW])
    assert records(files)[number].flags & os.O_ACCMODE == os.O_WRONLY
    files.release(SHADOW)
    os.close(number)
    os.close(again)


def test_files_are_held_until_their_last_shadow_has_ended(opened: int) -> None:
    plan = TargetFiles().plan(os.getpid())
    files = plan.settle(at_stop(plan), [1, 2])
    files.hold(3)
    for pid in (1, 3, 3, 99):
        files.release(pid)
        assert opened in records(files)
    files.release(2)
    assert files.for_core() == b""
    files.release(2)


def test_without_a_shadow_nothing_is_kept(opened: int) -> None:
    plan = TargetFiles().plan(os.getpid())
    assert plan.settle(at_stop(plan), []).for_core() == b""


def test_there_may_be_too_many(data: Path) -> None:
    with ExitStack() as stack:

        def open_more(count: int) -> None:
            for _ in range(count):
                stack.callback(os.close, os.open(data, os.O_RDONLY))

        open_more(FILES_MAXIMUM + 5)
        files = found()
        assert len(records(files)) == FILES_MAXIMUM
        files.release(SHADOW)
        open_more(DESCRIPTORS_MAXIMUM)
        assert TargetFiles().plan(os.getpid()).for_core() == b""


def test_a_process_that_is_gone_has_none() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert TargetFiles().plan(pid).for_core() == b""


def test_a_thread_is_looked_up_by_its_own_number(opened: int) -> None:
    numbers: list[int] = []

    def look() -> None:
        files = TargetFiles().plan(threading.get_native_id()).settle(b"", [])
        assert files.for_core() == b""
        plan = TargetFiles().plan(threading.get_native_id())
        mine = plan.settle(at_stop(plan), [SHADOW])
        numbers.extend(records(mine))
        mine.release(SHADOW)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert opened in numbers


@pytest.mark.parametrize(
    ("text", "info"),
    [
        (
            b"pos:\t17\nflags:\t02100001\nmnt_id:\t27\nino:\t99\n",
            FdInfo(17, 0o2100001, 27, 99, False),
        ),
        (
            b"pos:\t0\nflags:\t02\nmnt_id:\t27\nino:\t9\nlock:\t1: LEASE  ACTIVE    WRITE 7 ...",
            FdInfo(0, 2, 27, 9, True),
        ),
        (b"pos:\t17\nflags:\t02100001\nmnt_id:\t27\n", None),
        (b"pos:\t17\nflags:\t021", None),
        (b"", None),
    ],
)
def test_fdinfo(text: bytes, info: FdInfo | None) -> None:
    assert parse_fdinfo(text) == info


def test_mounts() -> None:
    text = (
        b"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        b"28 27 0:40 / /mnt/a\\040b rw - nfs4 server:/x rw\n"
        b"29 27 0:41 / /proc rw shared:7 master:2 - proc proc rw\n"
    )
    assert local_mounts(text) == {27: True, 28: False, 29: False}
