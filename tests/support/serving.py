"""A web process with invented targets, and what it answers."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from invented import make_node_status, make_snapshot
from msgspec.structs import replace
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.exporters.snapshot import NodeStatus, Snapshot
from memsampd.web.process import WebProcess


def now_snapshot(phases: int = 3, *, pid: int = 4242, **more: Any) -> Snapshot:
    """An invented snapshot of this moment."""
    return replace(make_snapshot(phases, pid=pid), time_seconds=time.monotonic(), **more)


def lasting_node_status() -> NodeStatus:
    """An invented status of a daemon that does not grow old while tests run."""
    return replace(make_node_status(), time_seconds=time.monotonic() + 86400.0)


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, Any]:
    """Return status, headers and body (decoded where it is JSON)."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=PATIENCE_SECONDS
    )
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body: Any = answer.read()
        if "json" in (answer.headers["content-type"] or ""):
            body = json.loads(body) if body else None
        return answer.status, answer.headers, body
    finally:
        connection.close()


def document(web: WebProcess, path: str) -> Any:
    """Return a document of the API."""
    status, _, body = ask(web.url, path)
    assert status == 200, (path, body)
    return body


def until_known(web: WebProcess, targets: int) -> list[dict[str, Any]]:
    """Wait until the web process knows so many targets that are observed."""

    def known() -> list[dict[str, Any]] | None:
        listed: list[dict[str, Any]] = document(web, "/api/v1/targets")["targets"]
        return listed if sum(each["attached"] for each in listed) == targets else None

    found: list[dict[str, Any]] = wait_for(known, f"{targets} targets")
    return found


@contextmanager
def serving(*snapshots: Snapshot) -> Iterator[WebProcess]:
    """A web process that knows these."""
    web = WebProcess("127.0.0.1:0")
    try:
        for snapshot in snapshots:
            web.publish(snapshot)
        until_known(web, len({snapshot.target.pid for snapshot in snapshots if snapshot.alive}))
        yield web
    finally:
        web.close()
