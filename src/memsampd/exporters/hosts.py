"""By which names this machine may be asked."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    name = host.removeprefix("[").removesuffix("]").rstrip(".").lower()
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


def may_be_asked_as(header: str, listening_host: str) -> bool:
    """Whether a server on this address answers a request with this Host header.

    A page of another origin can have its own name resolve to 127.0.0.1 and would then be of the
    same origin as the server (DNS rebinding). So whoever asks a server on a loopback address must
    call it by a loopback name.
    """
    return not is_loopback(listening_host) or is_loopback(host_of(header))
