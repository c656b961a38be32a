"""Where memsampd's own memory lies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

# Many threads allocate what no pool has yet, and end; prints how many pools malloc has then.
ALLOCATING = """
import ctypes, sys, threading
from memsampd import _core
if sys.argv[1] != "as it is": _core.use_huge_pages()
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

# Small objects, and buffers of the C library: prints which of them lie where huge pages are asked
# for, and how much memory is resident with them and without.
PLACED = """
import ctypes, json
from memsampd import _core

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

def advised():
    areas, area = [], None
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first, *rest = line.split()
            if not first.endswith(":"):
                area = [int(each, 16) for each in first.split("-")]
            elif first == "VmFlags:" and "hg" in rest:
                areas.append(area)
    return areas

def share(addresses, areas):
    inside = [any(start <= each < end for start, end in areas) for each in addresses]
    return sum(inside) / len(inside)

given = _core.use_huge_pages()
again = _core.use_huge_pages()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
for each in [libc.malloc(1_000_000) for _ in range(10)]: libc.free(each)
buffers = [libc.malloc(50_000) for _ in range(350)]
objects = [(each, str(each)) for each in range(300_000)]
full = resident()
areas = advised()
found = [share(buffers, areas), share([id(each) for each in objects[::100]], areas)]
sums = sum(number for number, _ in objects)
objects.clear()
print(json.dumps([given, again, *found, sums, full - resident()]))
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def pools(how: str) -> int:
    lines = run(ALLOCATING, how).stderr.splitlines()
    return sum(line.startswith("Arena ") for line in lines)


def test_threads_share_one_pool() -> None:
    assert pools("as it is") > 1
    assert pools("shared") == 1


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no transparent huge pages")
def test_what_is_allocated_lies_in_huge_pages_and_is_given_back() -> None:
    given, again, buffers, objects, total, freed = json.loads(run(PLACED).stdout)
    assert given
    assert again
    assert buffers > 0.8  # but for up to 2 MiB before the first huge page
    assert objects > 0.9
    assert total == sum(range(300_000))
    assert freed > 10_000_000  # of some 40 MB: most arenas, and no buffer
