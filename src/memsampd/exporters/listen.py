"""Where to listen: the default, and addresses as people type them. Imports nothing heavy."""

from __future__ import annotations

from memsampd.errors import UsageError

DEFAULT_LISTEN = "127.0.0.1:9753"


def parse_listen(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; an IPv6 address stands in brackets.

    Raises:
        UsageError: it is not that.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"cannot listen on {text!r}", f"give HOST:PORT, such as {DEFAULT_LISTEN}")
    return host, int(port)
