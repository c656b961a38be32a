"""Versions of memsampd side by side: what they export, judged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from invented_reference import invented_reference

from reference.windows import LRU_SIZES_BYTES
from versions import LARGE, ExportedCurve, Means, Version, missed_goals, page_of, score

SIZES = len(LRU_SIZES_BYTES)


def test_a_version_exports_its_own_recording(tmp_path: Path) -> None:
    executable = tmp_path / "memsampd"
    curve = {"miss_ratio": [None, 0.25], "low": [0.0, 0.125], "high": [1.0, 0.5]}
    script = f"#!/bin/sh\necho \"$@\" >{tmp_path}/told\necho '{json.dumps({'overall': curve})}'\n"
    executable.write_text(script)
    executable.chmod(0o700)
    version = Version.of(f"old={executable}")
    assert version == Version("old", executable)
    told = version.exported(Path("some.mem"))
    assert told == ExportedCurve([None, 0.25], [0.0, 0.125], [1.0, 0.5])
    assert (tmp_path / "told").read_text().startswith("export some.mem --format json --sizes 1KiB,")
    with pytest.raises(ValueError, match="old"):
        Version.of("old")


def test_curves_are_judged_at_small_and_large_sizes() -> None:
    reference = invented_reference()
    exact = reference.lru.sum(axis=0) / reference.total_accesses
    known = (exact + np.where(LARGE, 0.02, 0.01)).tolist()
    right = score(reference, "a", ExportedCurve(known, (exact - 0.03).tolist(), known))
    assert right.holds == [True] * SIZES
    means = Means.of([right])
    assert (means.small, means.error, means.held) == pytest.approx((1, 2, 100))
    assert means.width == pytest.approx(5)
    unknown = score(reference, "b", ExportedCurve([None] * SIZES, [0.0] * SIZES, [1.0] * SIZES))
    assert unknown.errors == pytest.approx((100 * np.abs(0.5 - exact)).tolist())
    wrong = score(reference, "b", ExportedCurve(known, known, known))
    assert Means.of([right, wrong]).held == 50
    versions = [Version("a", Path("x")), Version("b", Path("y"))]
    text = page_of(versions, [right, wrong], []).markdown()
    assert f"| {reference.name} | b | 1 | 1.00 | 2.00 | 0.0 | 0 |" in text
    assert "| **mean** | a | 1 | 1.00 | 2.00 | 5.0 | 100 |" in text


@pytest.mark.parametrize(
    ("now", "missed"),
    [
        (Means(small=1, error=1, width=5, held=95), 0),
        (Means(small=1, error=1.1, width=5.1, held=94), 3),
    ],
)
def test_goals(now: Means, missed: int) -> None:
    assert len(missed_goals(Means(small=1, error=3, width=10, held=50), now)) == missed
