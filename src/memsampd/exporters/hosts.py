"""By which names this machine may be asked."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    name = _plain(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the host of a Host header, without the port."""
    host, colon, port = header.rpartition(":")
    return host if colon and port.isascii() and port.isdigit() else header


def may_be_asked_as(header: str, address: str, called: str) -> bool:
    """Whether a server answers a request with this Host header.

    A page of another origin can have its own name resolve to 127.0.0.1 and would then be of the
    same origin as the server (DNS rebinding). So whoever asks a server on a loopback address must
    call it by a loopback name, or as the user did.

    Args:
        header: what it is asked as.
        address: that it listens on.
        called: what the user called that.
    """
    host = host_of(header)
    return not is_loopback(address) or is_loopback(host) or _plain(host) == _plain(called)


def _plain(host: str) -> str:
    return host.removeprefix("[").removesuffix("]").rstrip(".").lower()
