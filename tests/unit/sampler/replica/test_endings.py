"""What ended a burst, in words."""

from __future__ import annotations

import os
import signal

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.replica.endings import end_detail, read_code, syscall_detail


def test_names_are_those_of_the_kernels_headers() -> None:
    assert [syscall_detail(number) for number in (0, 39, 228)] == [
        "read",
        "getpid",
        "clock_gettime",
    ]
    assert (syscall_detail(999), syscall_detail(-1)) == ("999", "-1")


def test_each_end_tells_what_it_came_to() -> None:
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        assert end_detail(BurstEnd.FULL, 0, 0, memory) == ""
        assert end_detail(BurstEnd.FAULT, 0, signal.SIGSEGV, memory) == "SIGSEGV"
        assert end_detail(BurstEnd.SIGNAL, 0, 0, memory) == ""
        for end in (BurstEnd.SYSCALL, BurstEnd.ASLEEP, BurstEnd.DIFFERED):
            assert end_detail(end, 0, 1, memory) == "write"
        assert end_detail(BurstEnd.UNSUPPORTED, 0, 0, memory) == "unreadable code"
        assert read_code(memory, 0) == b""
    finally:
        os.close(memory)
