"""Page faults are charged once, dearer while a page is shared, and no more than there are pages."""

from __future__ import annotations

import pytest

from memsampd.sampler.shadow.faults import COPY_SECONDS, UNSHARE_SECONDS, CopyFaults


def test_faults_cost_more_while_a_copy_lives() -> None:
    faults = CopyFaults()
    faults.begin(copies=2, faults=1000, private_bytes=100 * 4096)
    assert faults.end(1030) == pytest.approx(30 * COPY_SECONDS)
    assert faults.end(1050) == pytest.approx(20 * COPY_SECONDS)
    assert faults.charge(1060) == pytest.approx(10 * UNSHARE_SECONDS)
    assert faults.charge(1060) == 0


def test_no_more_than_there_were_pages() -> None:
    faults = CopyFaults()
    faults.begin(copies=1, faults=0, private_bytes=100 * 4096)
    assert faults.end(70) == pytest.approx(70 * COPY_SECONDS)
    assert faults.charge(5000) == pytest.approx(30 * UNSHARE_SECONDS)
    assert faults.charge(9000) == 0
    assert faults.begin(copies=1, faults=9000, private_bytes=10 * 4096) == 0
    assert faults.end(9100) == pytest.approx(10 * COPY_SECONDS)


def test_what_an_ended_copy_cost_is_told_when_the_next_is_made() -> None:
    faults = CopyFaults()
    assert faults.begin(copies=1, faults=500, private_bytes=100 * 4096) == 0
    faults.end(510)
    late_seconds = faults.begin(copies=1, faults=540, private_bytes=100 * 4096)
    assert late_seconds == pytest.approx(30 * UNSHARE_SECONDS)
    assert faults.end(541) == pytest.approx(COPY_SECONDS)


def test_nothing_is_charged_without_a_copy() -> None:
    assert CopyFaults().charge(12345) == 0
