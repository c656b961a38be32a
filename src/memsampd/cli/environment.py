"""What memsampd sets in its environment for itself: programs that it starts must not see it."""

from __future__ import annotations

import os

ONE_THREAD = "OPENBLAS_NUM_THREADS"
_OURS = "01"  # nobody else writes it so


def use_one_thread() -> None:
    """Keep numpy's library from starting threads: its matrices are small, and they would only wait.

    It reads this when it is loaded, so before the first command is imported.
    """
    os.environ.setdefault(ONE_THREAD, _OURS)


def environment_of_programs() -> dict[str, str]:
    """The environment as we found it."""
    return {
        name: value for name, value in os.environ.items() if (name, value) != (ONE_THREAD, _OURS)
    }
