"""Programs that write code: what was translated from it must not be used once it is another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shadowing import compile_c, running

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.shadow.snapshots import Snapshots
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor

# A function `mov offset(%rdi), %eax; ret` whose offset is rewritten: after so many calls, by the
# same thread, in the page that it runs from or in a fresh one.
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static char data[1 << 16];
int main(int argc, char **argv) {
    unsigned calls, fresh;
    sscanf(argv[1], "%u", &calls);
    sscanf(argv[2], "%u", &fresh);
    uint8_t *pages = mmap(0, 64 << 12, PROT_READ | PROT_WRITE | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    puts("ready");
    fflush(stdout);
    for (uint32_t round = 0;; round++) {
        uint8_t *code = pages + (fresh ? round % 64 << 12 : 0);
        uint32_t offset = round % 16000 * 4;
        memcpy(code, "\\x8b\\x87", 2);
        memcpy(code + 2, &offset, 4);
        memcpy(code + 6, "\\xc3", 1);
        for (unsigned i = 0; i < calls; i++)
            sum += ((int (*)(char *))code)(data);
    }
}
"""


# A round is some 7 or 8 accesses a call: long bursts come to a rewriting from wherever they begin.
@pytest.mark.parametrize(
    ("calls", "fresh", "accesses", "ends"),
    [
        (20, 0, 50_000, {BurstEnd.UNSUPPORTED}),
        (2000, 0, 50_000, {BurstEnd.UNSUPPORTED}),
        (300_000, 0, 5000, {BurstEnd.FULL, BurstEnd.UNSUPPORTED}),
        (2000, 1, 5000, {BurstEnd.FULL, BurstEnd.UNSUPPORTED}),
    ],
)
def test_rows_agree_with_stepping(
    calls: int, fresh: int, accesses: int, ends: set[BurstEnd], tmp_path: Path
) -> None:
    program = compile_c(tmp_path, PROGRAM)
    translating, stepping = TranslatingExecutor(), SteppingExecutor()
    with running(program, str(calls), str(fresh)) as target:
        assert target.stdout is not None
        target.stdout.readline()
        snapshots = Snapshots(target.pid)
        compared = 0
        for _ in range(8):
            shadows = snapshots.take(target.pid, 2, 60.0).shadows
            first = translating.run(shadows[0], accesses, 60.0)
            second = stepping.run(shadows[1], 5000, 60.0)
            for shadow in shadows:
                snapshots.end(shadow)
            compared += min(first.accesses, second.accesses)
            assert first.end in ends
            common = min(first.accesses, second.accesses)
            for name in ("ip", "address", "size_bytes", "is_write"):
                found, expected = (getattr(each.rows, name) for each in (first, second))
                assert np.array_equal(found[:common], expected[:common])
        snapshots.close()
    assert compared > 0
