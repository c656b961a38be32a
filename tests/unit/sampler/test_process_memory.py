"""Reading what is present of a process's memory."""

from __future__ import annotations

import mmap
import os
from ctypes import addressof, c_char

import pytest

from memsampd.sampler.process.memory import PresentMemory

PAGE_BYTES = mmap.PAGESIZE


def test_pages_are_read_as_far_as_they_are_present() -> None:
    with mmap.mmap(-1, 4 * PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area[:3] = b"abc"
        area[2 * PAGE_BYTES : 2 * PAGE_BYTES + 1] = b"d"
        first = c_char.from_buffer(area)
        begin = addressof(first)
        memory = PresentMemory(os.getpid())
        assert memory(begin, 3) == b"abc"
        assert memory(begin + 1, 2 * PAGE_BYTES) == b"bc" + bytes(PAGE_BYTES - 3)
        assert memory(begin + PAGE_BYTES, 1) == b""
        assert memory(begin + 2 * PAGE_BYTES, 1) == b"d"
        del first


def test_files_are_open_only_while_it_is_entered() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    value = c_char(b"x")
    memory, before = PresentMemory(os.getpid()), opened()
    for _ in range(3):
        assert memory(addressof(value), 1) == b"x"
    assert opened() == before
    with memory:
        assert memory(addressof(value), 1) == b"x"
        assert opened() == before + 2
        assert memory(addressof(value), 1) == b"x"
        assert opened() == before + 2
    assert opened() == before


def test_who_is_gone_has_no_memory() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with PresentMemory(pid) as memory, pytest.raises(OSError, match="pagemap"):
        memory(0x1000, 1)
