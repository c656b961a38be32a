"""The same loop on a small and on a large area: samples of a real process tell them apart."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from tracees import compile_c, running
from waiting import PATIENCE_SECONDS

from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.process.memory import CodeReader
from memsampd.sampler.records import Spacing
from memsampd.sampler.spacing import DataSpacing

# At random over 1 << argv[1] bytes, without an end.
LOOP = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    const uint64_t mask = (UINT64_C(1) << atoi(argv[1])) / 8 - 1;
    volatile uint64_t *table = calloc(mask + 1, 8);
    uint64_t state = 88172645463325252u, sum = 0;
    printf("ready\\n");
    fflush(stdout);
    for (;;) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        sum += table[state & mask];
        table[state & mask] = sum;
    }
}
"""


def spacing_in(process: subprocess.Popen[str], samples: int) -> Spacing | None:
    """After so many samples, however long they take."""
    reader = DataSpacing(process.pid, CodeReader(process.pid))
    source = TaskClockSource(process.pid, period_seconds=0.001)
    try:
        found, give_up = 0, time.monotonic() + PATIENCE_SECONDS
        while found < samples and time.monotonic() < give_up:
            came = source.read(0.1)
            found += len(came)
            reader.add(came)
    finally:
        source.close()
    assert found >= samples
    return reader.between(-np.inf, np.inf)


@pytest.mark.parametrize("log_bytes", [14, 19, 24])
def test_spacing_of_a_real_loop(tmp_path: Path, log_bytes: int) -> None:
    program = compile_c(tmp_path, LOOP)
    with running(program, str(log_bytes)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = spacing_in(process, 50)
    assert found is not None
    # All samples tell an address, or nearly; fifty at random lie a hundredth of the area apart in
    # the mean, less in the median, which so many tell to a third of an octave: six of these.
    lines = 2**log_bytes / 64
    assert found.octaves == pytest.approx(np.log2(1 + np.log(2) * lines / 100), abs=2.0)
