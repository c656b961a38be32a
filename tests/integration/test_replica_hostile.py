"""Targets that mean harm: they write over all that they can reach in the replica, and jump about.

In the target each of these programs comes to an end of its own making, or goes on: it lives where
there is no translator. A burst of it must come to some end, and memsampd must live.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from programs.hostility import ALL_WAYS, WAYS, area_of, compiled_hostile, harm

ROUNDS = int(os.environ.get("MEMSAMPD_HOSTILE_BURSTS", "60"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The program, and where its replica has the translator's area."""
    program = compiled_hostile(tmp_path_factory.mktemp("hostile"))
    return program, area_of(program)


@pytest.mark.parametrize("way", [*range(WAYS), ALL_WAYS])
def test_memsampd_and_the_target_live(way: int, hostile: tuple[Path, int]) -> None:
    _, problems = harm(*hostile, way, ROUNDS)
    assert problems == []
