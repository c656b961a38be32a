"""Frames on the pipe from the session to the web process: one way, length first.

The sender is the privileged side, so the receiver may decode whatever comes (pickle); nothing ever
comes back.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

from memsampd.exporters.past import Past
from memsampd.exporters.snapshot import NodeStatus, Snapshot

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Detached:
    """A target that is observed no longer.

    Attributes:
        target: its name, see :func:`~memsampd.exporters.documents.target_id`.
        is_let_go: it has not ended.
    """

    target: str
    is_let_go: bool = True


@dataclass(frozen=True, slots=True)
class Restored:
    """What a target did before memsampd was restarted.

    Attributes:
        target: its name, see :func:`~memsampd.exporters.documents.target_id`.
        past: what was kept of it.
    """

    target: str
    past: Past


Message: TypeAlias = Snapshot | NodeStatus | Detached | Restored


def encode(message: Message) -> bytes:
    """Return a message as one frame."""
    payload = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Puts frames together from whatever pieces arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are complete now."""
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                return
            payload = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            yield cast(Message, pickle.loads(payload))
