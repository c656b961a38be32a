"""The last-level cache and resctrl, on trees of files."""

import os
from pathlib import Path

import pytest

from memsampd.errors import CapabilityError
from memsampd.machines.resctrl import DividedCache, Group, apply, read_divided_cache, undo


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_cache(root: Path, cpu: int, index: int, facts: dict[str, object]) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    for name, value in facts.items():
        write(folder / name, str(value))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sockets of two CPUs with an L3 of 11 ways each."""
    write(tmp_path / "sys/devices/system/cpu/online", "0-3")
    for cpu in range(4):
        both = "0-1" if cpu < 2 else "2-3"
        first = {"level": 1, "type": "Data", "size": "32K", "shared_cpu_list": cpu}
        last = {"level": 3, "type": "Unified", "size": "22528K", "shared_cpu_list": both}
        add_cache(tmp_path, cpu, 0, {**first, "ways_of_associativity": 8})
        add_cache(tmp_path, cpu, 3, {**last, "ways_of_associativity": 11, "id": cpu // 2})
    return tmp_path


def mount(root: Path) -> Path:
    base = root / "sys/fs/resctrl"
    write(base / "schemata", "L3:0=7ff;1=7ff")
    write(base / "info/L3/cbm_mask", "7ff")
    write(base / "info/L3/min_cbm_bits", "2")
    write(base / "info/L3/num_closids", "4")
    for tid in (70, 71):
        (root / f"proc/70/task/{tid}").mkdir(parents=True)
    return base


def test_the_last_level_of_sysfs(root: Path) -> None:
    cache = read_divided_cache(root)
    assert (cache.name, cache.size_bytes, cache.ways) == ("L3", 22 << 20, 11)
    assert (cache.domains, cache.cpus, cache.source) == ((0, 1), (0, 1), "sysfs")
    assert (cache.groups, cache.least_ways) == (None, 1)
    assert cache.way_bytes == 2 << 20


def test_what_resctrl_says_counts(root: Path) -> None:
    mount(root)
    cache = read_divided_cache(root)
    assert (cache.groups, cache.least_ways, cache.source) == (3, 2, "resctrl")


def test_schemata_name_every_cache_of_the_level() -> None:
    cache = DividedCache("L3", 22 << 20, 11, 1, None, (0, 1), (), "sysfs")
    assert cache.schemata(0, 11) == "L3:0=7ff;1=7ff"
    assert cache.schemata(2, 3) == "L3:0=01c;1=01c"


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="--cache SIZE --ways N"):
        read_divided_cache(tmp_path, cpuid=lambda leaf, subleaf: None)


def test_groups_are_made_and_every_thread_moved(root: Path) -> None:
    base = mount(root)
    (folder,) = apply([Group("70", "L3:0=003;1=003", (70,))], root)
    assert folder == base / "memsampd-70"
    assert (folder / "schemata").read_text() == "L3:0=003;1=003\n"
    assert sorted((folder / "tasks").read_text().split()) == ["70", "71"]


def test_not_mounted_is_refused_with_a_remedy(root: Path) -> None:
    with pytest.raises(CapabilityError, match="mount -t resctrl"):
        apply([Group("70", "L3:0=3", (70,))], root)


def test_a_process_that_ended_meanwhile_is_told_and_undoes_nothing(root: Path) -> None:
    mount(root)
    told: list[str] = []
    groups = [Group("99", "L3:0=c", (99,)), Group("70", "L3:0=3", (70,))]
    ended, lives = apply(groups, root, told.append)
    assert told == [f"process 99 has ended meanwhile: {ended} is without it"]
    assert sorted((lives / "tasks").read_text().split()) == ["70", "71"]


def test_what_the_kernel_refuses_is_an_error(root: Path) -> None:
    mount(root)
    with pytest.raises(CapabilityError, match="cannot divide the cache"):
        apply([Group("70", "L3:0=3", (70,)), Group("no/folder", "L3:0=c", ())], root)


def test_only_our_groups_are_taken_away(root: Path) -> None:
    base = mount(root)
    for name in ("memsampd-1", "memsampd-2", "batch"):
        os.mkdir(base / name)
    undo(root)
    assert sorted(path.name for path in base.iterdir() if path.is_dir()) == ["batch", "info"]
