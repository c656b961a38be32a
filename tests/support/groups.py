"""Control groups of version 1 or 2, as far as this machine lets tests make them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from waiting import wait_for

_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def _parent(version: int, controller: str) -> Path:
    """Where groups of a controller are made."""
    if version == 1:
        mount = _MOUNTS[0] / controller
        if (mount / "tasks").exists():
            return mount
    for mount in _MOUNTS if version == 2 else ():
        with suppress(OSError):
            if controller in (mount / "cgroup.controllers").read_text().split():
                (mount / "cgroup.subtree_control").write_text(f"+{controller}")
                return mount
    pytest.skip(f"no control groups of version {version} for {controller}")


@contextmanager
def control_group(version: int, controller: str, name: str = "") -> Iterator[Path]:
    """A group of its own, removed after the body; skips the test where there can be none."""
    parent = _parent(version, controller)
    group = parent / f"memsampd-test-{os.getpid()}{name}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    def is_removed() -> bool:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        with suppress(OSError):  # those that have just died are still counted
            group.rmdir()
        return not group.exists()

    wait_for(is_removed)


def join(group: Path, pid: int) -> None:
    """Put a process into a group."""
    (group / "cgroup.procs").write_text(str(pid))
