from __future__ import annotations

from invented import make_snapshot
from msgspec.structs import replace

from memsampd.exporters.snapshot import Snapshot
from memsampd.web import process
from memsampd.web.process import _Outbox
from memsampd.web.wire import Message


def taken(outbox: _Outbox) -> list[Message]:
    return list(iter(outbox.take, None))


def ended(pid: int) -> Snapshot:
    return replace(make_snapshot(1, pid=pid), alive=False)


def test_nothing_is_kept_of_what_is_over_while_there_is_no_child() -> None:
    outbox, living = _Outbox(), make_snapshot(1)
    outbox.put("living", living)
    for pid in range(1, 50):
        outbox.put(str(pid), make_snapshot(1, pid=pid))
        outbox.put(str(pid), ended(pid))
    outbox.again()
    assert taken(outbox) == [living]
    outbox.put("1", ended(1))
    outbox.rest()
    assert taken(outbox) == []
    outbox.again()
    assert taken(outbox) == [living]


def test_a_child_is_told_ends_whole_unless_too_many_wait() -> None:
    outbox = _Outbox()
    outbox.again()
    for pid in range(1, process._MOST_WAITING + 3):
        outbox.put(str(pid), ended(pid))
    whole = [isinstance(message, Snapshot) for message in taken(outbox)]
    assert whole == [True] * process._MOST_WAITING + [False] * 2
