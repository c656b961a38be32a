"""Cache hierarchies from fake sysfs trees and recorded CPUID words."""

from pathlib import Path

import pytest

from memsampd.machines.caches import Cache, decode_cpuid_cache, read_caches
from memsampd.machines.cpulist import parse_cpu_list
from memsampd.machines.machine import decode_signature, native_cpuid, read_machine

Words = tuple[int, int, int, int]

# Recorded: Emerald Rapids (a KVM guest), leaf 4.
EMERALD_RAPIDS: dict[tuple[int, int], Words] = {
    (4, 0): (0x4000121, 0x2C0003F, 0x3F, 0),
    (4, 1): (0x4000122, 0x1C0003F, 0x3F, 0),
    (4, 2): (0x4000143, 0x3C0003F, 0x7FF, 0),
    (4, 3): (0x4004163, 0x4C0003F, 0x33FFF, 0),
    (4, 4): (0, 0, 0, 0),
    (0, 0): (0x1C, 0x756E6547, 0x6C65746E, 0x49656E69),
    (1, 0): (0x000C06F2, 0, 0, 0),
    (0x80000002, 0): (0x65746E49, 0x2952286C, 0x6F655820, 0x2952286E),
    (0x80000003, 0): (0x6F725020, 0x73736563, 0x0000726F, 0),
    (0x80000004, 0): (0, 0, 0, 0),
}
# AMD Zen 3 by its manual (PPR for family 19h): leaf 4 is zero, 0x8000001D has the caches.
ZEN3: dict[tuple[int, int], Words] = {
    (4, 0): (0, 0, 0, 0),
    (0x8000001D, 0): (0x4121, 0x1C0003F, 0x3F, 0),
    (0x8000001D, 1): (0x4122, 0x1C0003F, 0x3F, 0),
    (0x8000001D, 2): (0x4143, 0x1C0003F, 0x3FF, 2),
    (0x8000001D, 3): (0x3C163, 0x3C0003F, 0x7FFF, 1),
    (0x8000001D, 4): (0, 0, 0, 0),
}


def recorded(words: dict[tuple[int, int], Words]) -> object:
    return lambda leaf, subleaf: words.get((leaf, subleaf))


def sizes(caches: tuple[Cache, ...]) -> dict[str, int]:
    return {cache.name: cache.size_bytes >> 10 for cache in caches}


def add_cache(
    root: Path, cpu: int, index: int, level: int, kind: str, size: str, shared: str
) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in {
        "level": str(level),
        "type": kind,
        "size": size,
        "coherency_line_size": "64",
        "ways_of_associativity": "8",
        "number_of_sets": "64",
        "shared_cpu_list": shared,
    }.items():
        if text:
            (folder / name).write_text(f"{text}\n")


def set_online(root: Path, text: str) -> None:
    folder = root / "sys/devices/system/cpu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "online").write_text(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (EMERALD_RAPIDS, {"L1d": 48, "L1i": 32, "L2": 2048, "L3": 266240}),
        (ZEN3, {"L1d": 32, "L1i": 32, "L2": 512, "L3": 32768}),
    ],
)
def test_cpuid(tmp_path: Path, words: dict[tuple[int, int], Words], expected: object) -> None:
    caches = read_caches([0], tmp_path, recorded(words))  # type: ignore[arg-type]
    assert sizes(caches) == expected
    assert {cache.source for cache in caches} == {"cpuid"}


def test_cpuid_geometry() -> None:
    cache = decode_cpuid_cache(EMERALD_RAPIDS[4, 0])
    assert (cache.level, cache.kind) == (1, "data")
    assert (cache.line_bytes, cache.ways, cache.sets) == (64, 12, 64)


def test_sysfs_wins_and_cpuid_fills_the_gaps(tmp_path: Path) -> None:
    set_online(tmp_path, "0-1\n")
    for cpu in (0, 1):
        add_cache(tmp_path, cpu, 0, 1, "Data", "40K", str(cpu))
        add_cache(tmp_path, cpu, 1, 2, "Unified", "1M", "0-1")
        add_cache(tmp_path, cpu, 2, 3, "Unified", "", "0-1")  # a VM that hides the size
    machine = read_machine(tmp_path, recorded(EMERALD_RAPIDS), "x86_64")  # type: ignore[arg-type]
    assert [(c.name, c.size_bytes >> 10, c.shared_cpus, c.source) for c in machine.caches] == [
        ("L1d", 40, (0,), "sysfs"),
        ("L1d", 40, (1,), "sysfs"),
        ("L1i", 32, (), "cpuid"),
        ("L2", 1024, (0, 1), "sysfs"),
        ("L3", 266240, (), "cpuid"),
    ]
    assert machine.cache_sizes_bytes() == {"L1d": 40 << 10, "L2": 1 << 20, "L3": 266240 << 10}


def test_a_cache_of_many_cpus_is_read_where_one_of_them_tells_it(tmp_path: Path) -> None:
    """Machines have hundreds of CPUs."""
    set_online(tmp_path, "0-3\n")
    for cpu, size in enumerate(("", "2M", "none of these", "is read any more")):
        add_cache(tmp_path, cpu, 0, 2, "Unified", size, "0-3")
    machine = read_machine(tmp_path, lambda leaf, subleaf: None, "x86_64")
    assert [(c.name, c.size_bytes, c.shared_cpus) for c in machine.caches] == [
        ("L2", 2 << 20, (0, 1, 2, 3))
    ]


def test_a_hybrid_machine_differs_by_cpu(tmp_path: Path) -> None:
    set_online(tmp_path, "0,2\n")
    add_cache(tmp_path, 0, 0, 1, "Data", "48K", "0")
    add_cache(tmp_path, 2, 0, 1, "Data", "32K", "2")
    machine = read_machine(tmp_path, lambda leaf, subleaf: None, "x86_64")
    assert machine.cache_sizes_bytes() == {"L1d": 48 << 10}
    assert machine.cache_sizes_bytes(2) == {"L1d": 32 << 10}


def test_a_machine_that_hides_everything(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, lambda leaf, subleaf: None, "aarch64")
    assert machine.caches == ()
    assert machine.cache_sizes_bytes() == {}
    assert (machine.cpu.source, machine.cpu.vendor, machine.cpu.architecture) == (
        "none",
        "",
        "aarch64",
    )
    assert machine.cpus


def test_cpu_by_cpuid(tmp_path: Path) -> None:
    cpu = read_machine(tmp_path, recorded(EMERALD_RAPIDS), "x86_64").cpu  # type: ignore[arg-type]
    assert (cpu.vendor, cpu.family, cpu.model, cpu.stepping) == ("GenuineIntel", 6, 0xCF, 2)
    assert (cpu.name, cpu.source) == ("Intel(R) Xeon(R) Processor", "cpuid")


@pytest.mark.parametrize(
    ("eax", "expected"),
    [(0x000C06F2, (6, 0xCF, 2)), (0x00A20F10, (0x19, 0x21, 0)), (0x00000543, (5, 4, 3))],
)
def test_signatures(eax: int, expected: tuple[int, int, int]) -> None:
    assert decode_signature(eax) == expected


def test_this_machine_agrees_with_itself() -> None:
    """cpuinfo against CPUID, and sysfs against CPUID: two ways to the same silicon."""
    machine = read_machine()
    assert machine.cpus
    if native_cpuid(0, 0) is None:
        pytest.skip("no x86")
    by_cpuid = read_machine(Path("/nonexistent")).cpu
    assert (machine.cpu.vendor, machine.cpu.family, machine.cpu.model) == (
        by_cpuid.vendor,
        by_cpuid.family,
        by_cpuid.model,
    )
    for cache in machine.caches:
        if cache.ways and cache.sets and cache.line_bytes:
            assert cache.size_bytes % (cache.ways * cache.sets * cache.line_bytes) == 0


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("\n", ())]
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
