"""Tracers that are killed: whether a target is traced is known."""

from __future__ import annotations

import os
import signal
import subprocess

from memsampd.sampler.process.status import read_status
from stepping_harm import tracer_of


def test_a_tracer_tells_whether_it_traces() -> None:
    target = subprocess.Popen(["sleep", "1000"])
    try:
        tracer = tracer_of(target.pid, steps=False)
        assert tracer is not None
        assert read_status(target.pid).tracer_pid == tracer
        assert tracer_of(target.pid, steps=False) is None  # it has a tracer
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)
        assert target.poll() is None
    finally:
        target.kill()
        target.wait()
