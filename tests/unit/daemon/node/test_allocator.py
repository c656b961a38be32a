"""What the C library keeps."""

from __future__ import annotations

import subprocess
import sys

# Many threads allocate what no pool has yet, and end; prints how many pools malloc has then.
ALLOCATING = """
import ctypes, re, sys, threading
from memsampd.daemon.node.allocator import keep_little
assert sys.argv[1] == "as it is" or keep_little()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(8)
def allocate():
    barrier.wait()
    for _ in range(100): libc.malloc(1000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
libc.malloc_stats()
"""


def pools(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATING, how], capture_output=True, text=True, check=True
    )
    return sum(line.startswith("Arena ") for line in done.stderr.splitlines())


def test_threads_share_one_pool() -> None:
    assert pools("as it is") > 1
    assert pools("shared") == 1
