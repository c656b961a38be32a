"""Streams that take turns, against a list in order of last touch."""

import numpy as np
import pytest

from reference.interleaving import shared_ratios, taking_part, together


def test_streams_interleave_evenly_and_keep_their_order() -> None:
    one, other = np.arange(300, dtype=np.uint64), np.arange(100, dtype=np.uint64)
    (piece,) = together([one, other])
    lines, owner = piece
    assert (lines[owner == 0] == one).all()
    assert len(lines) == 400
    # Of any eight in a row two are the second's.
    turns = np.add.reduceat(owner, np.arange(0, 400, 8))
    assert set(turns.tolist()) == {2}


def test_pieces_go_on_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [np.arange(n, dtype=np.uint64) for n in (70, 50)]
    (whole,) = together(streams)
    monkeypatch.setattr("reference.interleaving._CHUNK", 24)
    pieces = list(together(streams))
    assert len(pieces) == 5
    for stream in range(2):
        kept = np.concatenate([lines[owner == stream] for lines, owner in pieces])
        assert (kept == whole[0][whole[1] == stream]).all()


def test_the_first_to_end_ends_it_for_all() -> None:
    assert taking_part([1000, 400], [1.0, 2.0]) == [200, 400]
    assert taking_part([100, 100], [1.0, 1.0]) == [100, 100]


def test_misses_are_those_of_a_shared_list() -> None:
    random = np.random.default_rng(3)
    streams = [random.integers(0, n, 600).astype(np.uint64) for n in (20, 90)]
    ((lines, owner),) = together(streams)
    for size in (16, 64):
        order: list[int] = []
        missed = [0, 0]
        for line, who in zip(lines.tolist(), owner.tolist(), strict=True):
            missed[who] += line not in order[:size]
            if line in order:
                order.remove(line)
            order.insert(0, line)
        found = shared_ratios(streams, [64 * size])[:, 0]
        assert found.tolist() == pytest.approx([each / 600 for each in missed])
