"""Which memory a shadow lacks, and what of it can be copied, on our own process's memory."""

import mmap
import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsampd.sampler.process.maps import AddressSpace, Mapping
from memsampd.sampler.shadow import unforked
from memsampd.sampler.shadow.unforked import UnforkedMemory, private_areas, touched_pages

PERMS = ("rw-p", "r-xp", "---p", "rw-s", "rwxp")
PROTECTIONS = {"rw-p": 3, "r-xp": 5, "rwxp": 7}


def mapping(start: int, end: int, perms: str = "rw-p") -> Mapping:
    return Mapping(start, end, perms, 0, "00:00", 0, "")


@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=20, unique=True).map(sorted),
    st.lists(st.sampled_from((*PERMS, "")), min_size=20, max_size=20),
    st.lists(st.integers(0, 60), max_size=8, unique=True).map(sorted),
)
def test_private_areas_agree_with_sets(edges: list[int], perms: list[str], cuts: list[int]) -> None:
    space = AddressSpace(
        [mapping(a, b, p) for (a, b), p in zip(pairwise(edges), perms, strict=False) if p]
    )
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    wanted = {
        (at, PROTECTIONS[m.perms])
        for m in space.mappings
        if m.perms in PROTECTIONS
        for at in range(m.start, m.end)
        if any(start <= at < end for start, end in ranges)
    }
    areas = private_areas(space, ranges)
    got = [(at, protection) for start, end, protection in areas for at in range(start, end)]
    assert len(got) == len(set(got))
    assert set(got) == wanted
    assert not any(a[1:] == (b[0], b[2]) for a, b in pairwise(areas)), "not merged"


@pytest.fixture
def own_memory() -> tuple[mmap.mmap, int]:
    """Eight pages of ours, of which the third and the fourth are touched, and where they lie."""
    memory = mmap.mmap(-1, 8 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    memory[2 * 4096] = memory[3 * 4096] = 1
    return memory, start


def test_only_touched_pages_count(own_memory: tuple[mmap.mmap, int]) -> None:
    _, start = own_memory
    touched = touched_pages(os.getpid(), [(start, start + 8 * 4096, 3)])
    assert touched.tolist() == [False, False, True, True, False, False, False, False]
    nothing = touched_pages(os.getpid(), [(1 << 60, (1 << 60) + 4096, 3)])
    assert nothing.tolist() == [False]


def test_what_shadows_lack_is_planned_and_forgotten(own_memory: tuple[mmap.mmap, int]) -> None:
    _, start = own_memory
    end = start + 8 * 4096
    unforked_memory = UnforkedMemory(os.getpid())
    space = AddressSpace([mapping(start, end)])
    first = unforked_memory.plan(space)
    assert (first.areas, unforked_memory.touched_bytes()) == ((), 0)
    assert unforked_memory.learn(first, b"", ((start, end),), space)
    second = unforked_memory.plan(space)
    assert second.areas == ((start, end, 3),)
    assert len(second.room) == end - start
    assert not any(second.room[:])
    assert unforked_memory.touched_bytes() == 2 * 4096
    assert not unforked_memory.learn(second, b"\1", (), space), "it lacked nothing"
    assert unforked_memory.plan(space).areas == second.areas
    assert not unforked_memory.learn(second, b"\0", ((start, end),), space), "trying is no use"
    assert unforked_memory.plan(space).areas == second.areas
    assert not unforked_memory.learn(second, b"\0", (), space), "children get it by now"
    assert unforked_memory.plan(space).areas == ()
    assert unforked_memory.learn(first, b"", ((start, end),), space)
    assert unforked_memory.plan(AddressSpace([])).areas == (), "unmapped meanwhile"


def test_what_is_mapped_later_is_copied_on_the_chance(
    own_memory: tuple[mmap.mmap, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, start = own_memory
    first, second, third = (start + n * 4096 for n in (0, 2, 5))
    before = AddressSpace([mapping(first, first + 4096), mapping(second, second + 4096)])
    later = AddressSpace([*before.mappings, mapping(third, third + 4096)])
    memory = UnforkedMemory(os.getpid())
    assert memory.plan(later).areas == (), "nothing is known to be lacked"
    assert memory.learn(memory.plan(before), b"", ((first, first + 4096),), before)
    plan = memory.plan(later)
    assert [area[0] for area in plan.areas] == [first, third]
    assert memory.plan(later).areas == plan.areas, "no shadow was made in between"
    monkeypatch.setattr(unforked, "NEW_MAXIMUM_BYTES", 4095)
    assert [area[0] for area in memory.plan(later).areas] == [first]
    assert not memory.learn(plan, b"\1\0", (), later)
    assert [area[0] for area in memory.plan(later).areas] == [first], "the shadow had the other"


def test_the_largest_areas_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unforked, "AREAS_MAXIMUM_BYTES", 3 * 4096)
    space = AddressSpace([mapping(0, 0x3000), mapping(0x4000, 0x5000), mapping(0x6000, 0x8000)])
    memory = UnforkedMemory(os.getpid())
    absent = ((0, 0x3000), (0x4000, 0x5000), (0x6000, 0x8000))
    assert memory.learn(memory.plan(space), b"", absent, space)
    plan = memory.plan(space)
    assert [area[:2] for area in plan.areas] == [(0x4000, 0x5000), (0x6000, 0x8000)]
    assert not memory.learn(plan, b"\1\1", ((0, 0x3000),), space), "it will never be copied"
