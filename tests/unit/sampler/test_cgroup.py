"""Limits of control groups, as both versions' files tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memsampd.sampler.process.cgroup import CgroupLimits, memory_room_bytes, read_limits

PID = 7
SECOND = {
    "proc/7/cgroup": "0::/a.slice/b.service\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/a.slice/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/a.slice/cpu.stat": "usage_usec 9\nnr_periods 200\nnr_throttled 50\n",
    "sys/fs/cgroup/a.slice/b.service/cpu.max": "max 100000\n",
    "sys/fs/cgroup/a.slice/memory.max": "max\n",
    "sys/fs/cgroup/a.slice/b.service/memory.max": "1048576\n",
    "sys/fs/cgroup/a.slice/b.service/memory.current": "4096\n",
}
FIRST = {
    "proc/7/cgroup": "5:memory:/m\n4:cpu,cpuacct:/c/d\n0::/\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/c/d/cpu.cfs_quota_us": "5000\n",
    "sys/fs/cgroup/cpu/c/d/cpu.cfs_period_us": "10000\n",
    "sys/fs/cgroup/cpu/c/d/cpu.stat": "nr_periods 0\nnr_throttled 0\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "2097152\n",
    "sys/fs/cgroup/memory/m/memory.usage_in_bytes": "8192\n",
}
# Names of groups may hold all but the newline.
STRANGE = {
    "proc/7/cgroup": "0::/a\r0::\u2028b\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/a\r0::\u2028b/cpu.max": "25000 100000\n",
}
NONE = {"proc/7/cgroup": "0::/../../elsewhere\n"}


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    return root


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (SECOND, CgroupLimits(0.5, 0.1, 0.25, 1 << 20, 4096)),
        (FIRST, CgroupLimits(0.5, 0.01, None, 2 << 20, 8192)),
        (STRANGE, CgroupLimits(0.25, 0.1)),
        (NONE, CgroupLimits()),
        ({}, CgroupLimits()),
    ],
)
def test_the_tightest_limits_of_a_group_and_those_around_it(
    files: dict[str, str], limits: CgroupLimits, tmp_path: Path
) -> None:
    assert read_limits(PID, written(tmp_path, files)) == limits


def test_files_of_another_kind_are_no_limits(tmp_path: Path) -> None:
    strange = {name: "nonsense -1 0 0\n" for name in (*SECOND, *FIRST) if "proc/" not in name}
    written(tmp_path, {**strange, "proc/7/cgroup": FIRST["proc/7/cgroup"]})
    assert read_limits(PID, tmp_path) == CgroupLimits()


INNER, OUTER = "sys/fs/cgroup/a.slice/b.service", "sys/fs/cgroup/a.slice"
FULL_OUTER = {
    f"{OUTER}/memory.max": "4194304\n",
    f"{OUTER}/memory.current": "4000000\n",
    f"{OUTER}/memory.stat": "anon 3900000\ninactive_file 60000\nactive_file 40000\n",
}
CACHE_OF_FIRST = {
    "sys/fs/cgroup/memory/m/memory.usage_in_bytes": "2000000\n",
    "sys/fs/cgroup/memory/m/memory.stat": "inactive_file 7\nactive_file 7\n"
    "total_inactive_file 1500000\ntotal_active_file 400000\n",
}


@pytest.mark.parametrize(
    ("files", "room_bytes"),
    [
        (SECOND, (1 << 20) - 4096),
        ({**SECOND, **FULL_OUTER}, (4 << 20) - 3_900_000),
        ({**SECOND, f"{INNER}/memory.current": "2097152\n"}, 0),
        ({**SECOND, f"{INNER}/memory.stat": "inactive_file 8192\n"}, 1 << 20),
        (FIRST, (2 << 20) - 8192),
        ({**FIRST, **CACHE_OF_FIRST}, (2 << 20) - 100_000),
        (NONE, None),
        ({}, None),
    ],
)
def test_the_room_is_what_the_fullest_group_leaves_beside_page_cache(
    files: dict[str, str], room_bytes: int | None, tmp_path: Path
) -> None:
    assert memory_room_bytes(PID, written(tmp_path, files)) == room_bytes
