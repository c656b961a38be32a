"""The one exception root: every failure that a user can meet, with its remedy and exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memsampd.cost import BurstCost


class MemsampdError(Exception):
    """A failure that is reported to the user in one line.

    Args:
        cause: what went wrong, naming the thing it went wrong with.
        remedy: what the user can do about it; empty if there is nothing.
    """

    exit_status = 1

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause


class UsageError(MemsampdError):
    """The command line itself is wrong (exit status 2)."""

    exit_status = 2


class TargetError(MemsampdError):
    """The target process cannot be observed: gone, not ours, of an unsupported kind."""


class CapabilityError(MemsampdError):
    """This machine or this user lacks something that a backend needs."""


class RecordingError(MemsampdError):
    """A recording cannot be read or written."""


class TraceError(MemsampdError):
    """A trace cannot be read or written, or what it was to be made from cannot."""


class CaptureError(MemsampdError):
    """A burst could not be taken now; another time may do.

    Args:
        reason: short, stable name for counting ("not-running", "lost", ...).
        cause: what went wrong.
        remedy: what can be done about it.
        cost: what trying cost.
    """

    def __init__(
        self, reason: str, cause: str, remedy: str = "", cost: BurstCost | None = None
    ) -> None:
        from memsampd.cost import BurstCost  # not for who only asks for help: it loads msgspec

        super().__init__(cause, remedy)
        self.reason = reason
        self.cost = cost or BurstCost()
