"""Where to listen: the default, addresses as people type them, and the socket."""

from __future__ import annotations

import errno
import socket

from memsampd.errors import CapabilityError, UsageError

DEFAULT_LISTEN = "127.0.0.1:9753"
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept(2) where there is no descriptor or no memory: who connects still waits."""


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


def open_listening(listen: str, backlog: int, *, any_port: bool = False) -> socket.socket:
    """Listen at ``HOST:PORT``; ``[::]`` is any address, of IPv4, too.

    Args:
        listen: where; port 0 takes a free one.
        backlog: connections that may wait to be accepted.
        any_port: take a free port where this one is in use.

    Raises:
        UsageError: ``listen`` is malformed.
        CapabilityError: the address cannot be listened on.
    """
    host, port = parse_listen(listen)
    name = host.encode() if host.isascii() else host  # whose codec takes a while to be loaded
    try:
        family, _, _, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        if any_port and error.errno == errno.EADDRINUSE:
            return open_listening(f"{listen.rpartition(':')[0]}:0", backlog)
        raise _listening_error(error, listen) from error


def _listening_error(error: OSError, listen: str) -> CapabilityError:
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
