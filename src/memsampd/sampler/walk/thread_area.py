"""Where the fs base of a thread is: samples do not tell it, and only tracers may ask for it."""

from __future__ import annotations

import numpy as np

from memsampd.sampler.process.maps import AddressSpace, Mapping
from memsampd.sampler.walk.memory import PAGE_BYTES, ReadMemory

_ALIGNMENT = 16  # of thread control blocks is 64, by their ABI at least this
_OWN_WORD = 2  # of a control block (tcbhead_t of glibc and musl) that holds its address, after 0
_MOST_PAGES = 64
_NEAR_STACK_PAGES = 2050  # of a thread other than the first: its block is above its stack


def find_thread_area(
    read: ReadMemory, space: AddressSpace, stack: int, is_first: bool
) -> int | None:
    """Look for a thread control block: it begins with its own address, and says it again.

    That of the first thread is in a small area of its own; those of others lie above their stacks,
    in the same area.

    Args:
        read: reads the process.
        space: what is mapped.
        stack: the thread's stack pointer.
        is_first: the thread is the process's first one.

    Returns:
        The fs base; None where there is none, or more than one that it may be.
    """
    if is_first:
        areas = [each for each in space.mappings if _may_hold(each)]
        found = [at for each in areas for at in _blocks(read, each.start, each.end)]
        return found[0] if len(found) == 1 else None
    area = space.find(stack)
    if area is None:
        return None
    end = min(area.end, stack + _NEAR_STACK_PAGES * PAGE_BYTES)
    first = next(iter(_blocks(read, stack & -PAGE_BYTES, end)), None)
    return None if first is None or first < stack else first


def _may_hold(area: Mapping) -> bool:
    """Whether it is anonymous, writable and small."""
    is_small = area.size_bytes <= _MOST_PAGES * PAGE_BYTES
    return is_small and not area.inode and not area.path and area.perms.startswith("rw")


def _blocks(read: ReadMemory, start: int, end: int) -> list[int]:
    """Addresses of what looks like a control block."""
    found = []
    for page in range(start, end, PAGE_BYTES):
        data = read(page, PAGE_BYTES)
        if len(data) < PAGE_BYTES:
            continue
        words = np.frombuffer(data, np.uint64)
        here = page + 8 * np.arange(len(words), dtype=np.uint64)
        is_own = words == here
        for at in np.flatnonzero(is_own[:-_OWN_WORD]).tolist():
            address = page + 8 * at
            if address % _ALIGNMENT == 0 and int(words[at + _OWN_WORD]) == address:
                found.append(address)
    return found
