"""Who a shadow is: numbers of processes in their own namespaces, names of system calls."""

import os
import subprocess

import pytest

from memsampd import _core
from memsampd.sampler.process.status import parse_status
from memsampd.sampler.shadow.emulation import emulation_of, parent_as_seen, syscall_detail
from memsampd.sampler.shadow.snapshots import Shadow


@pytest.mark.parametrize(
    ("child", "parent", "seen"),
    [
        ("70", "60", 60),
        ("70\t7", "60\t6", 6),
        ("70\t1", "60", 0),  # the first process of a namespace
        ("70\t7\t2", "60\t6", 0),
        ("70\t7", "60\t6\t1", 6),
        ("", "60", 0),
    ],
)
def test_the_parent_in_the_namespace_of_the_child(child: str, parent: str, seen: int) -> None:
    statuses = (parse_status(f"NSpid:\t{numbers}\n") for numbers in (child, parent))
    assert parent_as_seen(*statuses) == seen


def test_identity_of_a_real_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        shadow = Shadow(1, 1, b"", process.pid, 0x1000, 0x4000, 5, 6, ((0x2000, 0x3000),))
        identity = emulation_of(shadow)
        process.kill()
    assert identity is not None
    assert identity[:8] == (process.pid, process.pid, process.pid, os.getpid(), 5, 6, False, 0x1000)
    assert identity[8] == b"\0\x20\0\0\0\0\0\0\0\x30\0\0\0\0\0\0"
    assert identity[9] == b""
    assert emulation_of(shadow) is None
    with pytest.raises(ValueError, match="pairs"):
        _core.Stepper().emulate((*identity[:8], b"123", b""))
    with pytest.raises(ValueError, match="open files"):
        _core.Stepper().emulate((*identity[:9], b"123"))


def test_names_are_those_of_the_kernel_s_headers() -> None:
    assert [syscall_detail(number) for number in (0, 39, 228)] == [
        "read",
        "getpid",
        "clock_gettime",
    ]
    assert (syscall_detail(999), syscall_detail(-1)) == ("999", "-1")
