from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from invented import make_snapshot

from memsampd.exporters.documents import curves_document, target_document
from memsampd.exporters.snapshot import Snapshot
from memsampd.web.wire import Detached, FrameReader, Message, encode


@given(st.lists(st.integers(1, 20_000), max_size=20))
def test_frames_arrive_whole_however_they_are_cut(lengths: list[int]) -> None:
    sent: list[Message] = [make_snapshot(2), Detached("1-2"), make_snapshot(1, alive=False)]
    stream = b"".join(map(encode, sent))
    reader = FrameReader()
    got: list[Message] = []
    for length in [*lengths, len(stream)]:
        got += reader.feed(stream[:length])
        stream = stream[length:]
    assert [type(message) for message in got] == [type(message) for message in sent]
    assert got[1] == sent[1]
    for one, other in ((got[0], sent[0]), (got[2], sent[2])):
        assert isinstance(one, Snapshot)
        assert isinstance(other, Snapshot)
        assert target_document(one) == target_document(other)
        assert curves_document(one) == curves_document(other)
        assert np.array_equal(one.estimate.sizes_bytes, other.estimate.sizes_bytes)
