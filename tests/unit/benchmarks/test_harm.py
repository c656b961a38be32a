"""The harm benchmark notices what is left, and what changed."""

from __future__ import annotations

import os

from programs.workload import Launch, Workload
from shadow_harm import digest, footprint, grown


def test_a_leaked_descriptor_is_noticed() -> None:
    before = footprint()
    assert grown(before, footprint()) == []
    descriptor = os.open("/dev/null", os.O_RDONLY)
    try:
        assert grown(before, footprint()) == [
            f"descriptors: {before['descriptors']} before, {before['descriptors'] + 1} after"
        ]
    finally:
        os.close(descriptor)


def test_a_digest_tells_output_and_status() -> None:
    def printing(script: str) -> str:
        launch = Launch(("sh", "-c", script))
        program = Workload("x", "what", "/sh", (), ("sh",), lambda _: launch, lambda _: launch)
        return digest(program, None, 0, 0)[0]

    assert printing("echo a") == printing("echo a")
    assert len({printing("echo a"), printing("echo b"), printing("echo a; exit 3")}) == 3
