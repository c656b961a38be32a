"""The web process itself: ``python -P -m memsampd.web.server``, started by WebProcess only."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import uvicorn
from anyio.lowlevel import checkpoint

from memsampd.names import HELPER_PREFIX
from memsampd.web.application import make_application
from memsampd.web.confine import confine
from memsampd.web.prompt import PromptProtocol
from memsampd.web.state import State
from memsampd.web.wire import FrameReader

_READ_BYTES = 1 << 18
_CONNECTIONS = 128


def main(words: list[str]) -> None:
    """Serve until the pipe ends.

    Args:
        words: descriptors of the pipe and of the listening socket, pid of the parent, what the user
            called the address that is listened on, for how many seconds metrics of a target that
            ended are kept.
    """
    Path("/proc/self/comm").write_text(f"{HELPER_PREFIX}web")
    pipe, parent_pid = int(words[0]), int(words[2])
    listening = socket.socket(fileno=int(words[1]))
    address: str = listening.getsockname()[0]
    state = State(kept_seconds=float(words[4]))
    config = uvicorn.Config(
        make_application(state, address, words[3]),
        loop="asyncio",
        http=PromptProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    # What is imported when it is used first is imported now, as long as we may read it.
    config.load()
    asyncio.run(checkpoint())
    confine(parent_pid)
    asyncio.run(_serve(uvicorn.Server(config), state, pipe, listening))


async def _serve(server: uvicorn.Server, state: State, pipe: int, listening: socket.socket) -> None:
    frames, loop = FrameReader(), asyncio.get_running_loop()
    os.set_blocking(pipe, False)

    def read() -> None:
        data = os.read(pipe, _READ_BYTES)
        if not data:
            loop.remove_reader(pipe)
            server.should_exit = True
        for message in frames.feed(data):
            state.receive(message)

    loop.add_reader(pipe, read)
    await server.serve(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1:])
