from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from invented import make_node_status, make_snapshot
from msgspec.structs import replace
from starlette.types import Message

from memsampd.web.api import MAX_STREAMS
from memsampd.web.application import make_application
from memsampd.web.guard import encoded
from memsampd.web.state import State


async def ask_events(state: State, clients: int) -> Counter[int]:
    """Have so many ask for events at the same moment; returns how often each status came."""
    application = make_application(state, "127.0.0.1", "127.0.0.1")
    statuses: Counter[int] = Counter()
    answered, away = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        await away.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses[message["status"]] += 1
            if statuses.total() == clients:
                answered.set()

    headers = [(b"host", b"localhost")]
    scope: dict[str, object]
    scope = {"type": "http", "method": "GET", "path": "/api/v1/events", "query_string": b""}
    scope |= {"headers": headers, "root_path": "", "asgi": {"spec_version": "2.0"}}
    calls = asyncio.gather(*(application(dict(scope), receive, send) for _ in range(clients)))
    await answered.wait()
    away.set()
    await calls
    return statuses


def test_of_those_who_come_at_once_no_more_than_may_are_told_events() -> None:
    statuses = asyncio.run(ask_events(State(), MAX_STREAMS + 8))
    assert statuses == {200: MAX_STREAMS, 503: 8}


def test_names_that_are_no_utf8_are_told_all_the_same() -> None:
    state = State()
    snapshot = make_snapshot()
    command = b"caf\xe9".decode("utf-8", "surrogateescape")
    state.receive(replace(snapshot, target=replace(snapshot.target, command=command)))
    for event in state.events_after(0):
        assert json.loads(encoded(event.document))["command"] == "caf�"
    document: dict[str, object] = {command: [command, 1, None]}
    assert json.loads(encoded(document)) == {"caf�": ["caf�", 1, None]}


async def health(state: State) -> tuple[int, dict[str, object]]:
    """Status and document of /healthz."""
    answer: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        answer.append(message)

    scope: dict[str, object]
    scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")], "root_path": "", "asgi": {}}
    await make_application(state, "127.0.0.1", "127.0.0.1")(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in answer)
    return answer[0]["status"], json.loads(body)


@pytest.mark.parametrize(("seconds", "status", "word"), [(30, 200, "ok"), (90, 503, "hangs")])
def test_a_daemon_that_tells_nothing_any_more_hangs(seconds: float, status: int, word: str) -> None:
    told = make_node_status()
    state = State(monotonic=lambda: told.time_seconds + seconds)
    assert asyncio.run(health(state))[0] == 200  # nothing was to be told yet
    state.receive(told)
    found, document = asyncio.run(health(state))
    assert (found, document["status"], document["node_age_seconds"]) == (status, word, seconds)
