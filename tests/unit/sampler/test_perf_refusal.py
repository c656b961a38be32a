"""What a user is told when perf events are refused: by real refusals, and by each errno."""

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tracees import sleeping

from memsampd.errors import CapabilityError, TargetError, UsageError
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.source import TaskClockSource


def with_paranoid(root: Path, level: int) -> Path:
    folder = root / "sys/kernel"
    folder.mkdir(parents=True)
    (folder / "perf_event_paranoid").write_text(f"{level}\n")
    return root


def test_the_sysctl_is_named_where_it_is_the_cause(tmp_path: Path) -> None:
    error = explain_refusal(OSError(errno.EACCES, ""), "sampling", with_paranoid(tmp_path, 3))
    assert isinstance(error, CapabilityError)
    assert "perf_event_paranoid is 3" in error.cause
    assert "sysctl" in error.remedy


def test_a_foreign_process_is_told_from_the_sysctl(tmp_path: Path) -> None:
    error = explain_refusal(OSError(errno.EACCES, ""), "sampling", with_paranoid(tmp_path, 2))
    assert isinstance(error, TargetError)
    assert "sudo" in error.remedy


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.EPERM, "seccomp"),
        (errno.ENOSYS, "sandbox"),
        (errno.ENOENT, "no such counter"),
        (errno.EOPNOTSUPP, "cannot be sampled"),
        (errno.EMFILE, "open files"),
        (errno.EBUSY, "another user"),
        (errno.EIO, "Input/output"),
    ],
)
def test_each_cause_has_a_remedy(number: int, word: str) -> None:
    error = explain_refusal(OSError(number, os.strerror(number)), "sampling")
    assert isinstance(error, CapabilityError)
    assert word in error.cause
    assert error.remedy


def deny_perf_event_open(number: int) -> None:
    """Install a seccomp filter that fails perf_event_open with this errno."""
    import ctypes

    perf_event_open = 298 if os.uname().machine == "x86_64" else 241
    program = b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the number of the call
            (0x15, 0, 1, perf_event_open),
            (0x06, 0, 0, 0x00050000 | number),  # SECCOMP_RET_ERRNO
            (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
        )
    )
    buffer = ctypes.create_string_buffer(program)
    fprog = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 4, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(fprog)), 0, 0) == 0


@pytest.mark.parametrize(("number", "word"), [(errno.EPERM, "seccomp"), (errno.ENOSYS, "sandbox")])
def test_a_container_that_forbids_perf_events(number: int, word: str) -> None:
    with sleeping() as target:
        code = (
            f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
            f"from {Path(__file__).stem} import *\n"
            f"deny_perf_event_open({number})\n"
            f"try: TaskClockSource({target.pid})\n"
            "except CapabilityError as error: print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert f"sampling process {target.pid}: perf_event_open is" in done.stdout, done.stderr
    assert word in done.stdout


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    with pytest.raises(TargetError, match="is gone"):
        TaskClockSource(child.pid)


@pytest.mark.parametrize("period_seconds", [0.0, -1.0, 9e-6, float("nan")])
def test_a_period_that_the_kernel_would_not_keep(period_seconds: float) -> None:
    with pytest.raises(UsageError, match="too short"):
        TaskClockSource(os.getpid(), period_seconds=period_seconds)
