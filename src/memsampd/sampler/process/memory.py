"""Reading a process's memory without a change to it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from memsampd.sampler.process.identity import PROC

_PAGE_BYTES = 4096
_PRESENT = np.uint64(1 << 63)  # proc_pid_pagemap(5)


def read_present(pid: int, address: int, size_bytes: int, proc: Path = PROC) -> bytes:
    """Read as much as is present: a read of other pages would bring them in.

    Raises:
        OSError: the process is gone, or not ours to read.
    """
    first, last = address // _PAGE_BYTES, (address + size_bytes - 1) // _PAGE_BYTES
    with open(proc / str(pid) / "pagemap", "rb", buffering=0) as pagemap:
        entries = os.pread(pagemap.fileno(), 8 * (last - first + 1), 8 * first)
    is_present = np.frombuffer(entries, np.uint64) & _PRESENT != 0
    pages = len(is_present) if is_present.all() else int(np.argmin(is_present))
    readable_bytes = min((first + pages) * _PAGE_BYTES - address, size_bytes)
    if readable_bytes <= 0:
        return b""
    with open(proc / str(pid) / "mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), readable_bytes, address)
