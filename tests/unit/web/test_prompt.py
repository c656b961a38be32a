from __future__ import annotations

import asyncio

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from memsampd.web import prompt


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(1 << 16)})


async def ask_and_read_little() -> None:
    """Ask as much as can be; reads what a stream keeps by itself."""
    config = uvicorn.Config(answer, log_config=None)
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: prompt.PromptProtocol(config, ServerState(), {}), "127.0.0.1", 0
    )
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while True:
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
            await writer.drain()


def test_a_connection_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "ANSWER_SECONDS", 0.1)
    with pytest.raises(ConnectionError):
        asyncio.run(ask_and_read_little())
