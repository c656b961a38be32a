#!/usr/bin/env python3
"""Uses as much CPU time as memsampd does later on, whatever it is told: what any process takes.

``cost_turns.py --other targets/beside.py`` measures it beside memsampd.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_WAKES_A_SECOND = 75  # of which most are bursts' and holds'
_SECONDS = 0.0002  # of work each time: 1.5 % of a CPU
_NICENESS = 5  # as memsampd's


def main() -> None:
    """Go on until SIGINT."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    os.nice(_NICENESS)
    while True:
        time.sleep(1 / _WAKES_A_SECOND)
        end = time.thread_time() + _SECONDS
        while time.thread_time() < end:
            pass


if __name__ == "__main__":
    main()
