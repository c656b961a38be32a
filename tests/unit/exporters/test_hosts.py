from __future__ import annotations

import pytest

from memsampd.exporters.hosts import host_of, is_loopback


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:9753", "LOCALHOST.:1", "127.0.0.1:80", "127.8.9.1", "[::1]:9753"],
)
def test_names_that_can_only_mean_this_machine(host: str) -> None:
    assert is_loopback(host_of(host))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:9753",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "0.0.0.0",
        "[::]",
        "[::1].evil.example",
        "[evil",
        "evil@localhost",
    ],
)
def test_names_that_can_mean_anything(host: str) -> None:
    assert not is_loopback(host_of(host))
