"""Requests to the daemon and its answers: one JSON object a line each way, see docs/daemon.md."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from memsampd.daemon.config import AccessChoice
from memsampd.errors import MemsampdError

VERSION = 1
Document: TypeAlias = dict[str, Any]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client asks for.

    Attributes:
        version: of the protocol.
        command: what is to be done.
        pid: the process ("attach", "detach").
        accesses: where those of the process are to come from ("attach"); None: as before, or as
            the configuration says.
    """

    version: int
    command: Literal["list", "status", "attach", "detach", "reload"]
    pid: int | None = None
    accesses: AccessChoice | None = None


class RefusedError(MemsampdError):
    """A request that is not done."""


def request_of(line: bytes) -> Request:
    """Read a request.

    Raises:
        RefusedError: it is none.
    """
    try:
        request = msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        cause = f"no request: {error}"
        raise RefusedError(cause, "see docs/daemon.md for the protocol") from error
    if request.version != VERSION:
        raise RefusedError(
            f"version {request.version} of the protocol is not known",
            f"this is memsampd with version {VERSION}: use its own command line",
        )
    return request


def refusal(cause: str, remedy: str) -> Document:
    """The answer to who asked in vain."""
    return {"ok": False, "version": VERSION, "cause": cause, "remedy": remedy}


def line_of(document: Document) -> bytes:
    """A request or an answer as it is sent."""
    return msgspec.json.encode(document) + b"\n"
