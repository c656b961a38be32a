"""What went wrong, in a line for people; or, for who looks into it, with its traceback."""

from __future__ import annotations

import os

from memsampd.errors import MemsampdError


def is_debugging() -> bool:
    """Whether the user wants tracebacks."""
    return os.environ.get("MEMSAMPD_DEBUG") == "1"


def message_of(error: Exception) -> str:
    """Tell in one line what went wrong."""
    match error:
        case MemsampdError():
            message = str(error)
        case MemoryError():
            message = "out of memory; free some or choose fewer sizes"
        case OSError():
            where = f"{error.filename}: " if error.filename is not None else ""
            message = f"{where}{error.strerror or error}"
        case _:
            message = (
                f"internal error: {type(error).__name__}: {error}; "
                "please report it with the traceback that MEMSAMPD_DEBUG=1 shows"
            )
    return " ".join(message.split())
