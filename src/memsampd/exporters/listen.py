"""Where to listen: the default, and addresses as people type them. Imports nothing heavy."""

from __future__ import annotations

import errno

from memsampd.errors import CapabilityError, UsageError

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


def url_of(host: str, port: int) -> str:
    """Return the address of the first page of a server."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def listening_error(error: OSError, listen: str) -> CapabilityError:
    """Return what to tell the user when an address cannot be listened on."""
    if error.errno == errno.EADDRINUSE:
        return CapabilityError(
            f"{listen} is in use", "choose another address with --listen HOST:PORT (port 0: any)"
        )
    if error.errno == errno.EACCES:
        return CapabilityError(
            f"{listen} may not be listened on", "choose a port from 1024 with --listen HOST:PORT"
        )
    return CapabilityError(
        f"cannot listen on {listen}: {error.strerror}", "name an address of this machine"
    )
