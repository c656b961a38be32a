"""What page faults cost a target because it was copied."""

from __future__ import annotations

# benchmarks/page_faults.py, in a VM: a page that a copy shares is copied when it is written to; one
# that is no longer shared is only made writable again.
COPY_SECONDS = 3.1e-6
UNSHARE_SECONDS = 0.9e-6
_PAGE_BYTES = 4096


class CopyFaults:
    """Charges a target's page faults to the copies that were made of it.

    A copy makes every private page read-only: the first write to each faults, whether the copy
    still exists or not. The target has faults of its own, too: no more are charged than there were
    such pages, all the same this is more than the copies cost where it keeps asking for new memory.
    """

    def __init__(self) -> None:
        self._copies = 0
        self._faults = 0
        self._protected_pages = 0

    def begin(self, copies: int, faults: int, private_bytes: int) -> float:
        """Copies have been made: return the seconds that earlier ones cost since the last call.

        Args:
            copies: how many.
            faults: minor faults of the target until then.
            private_bytes: of its resident memory.
        """
        seconds = self.charge(faults)
        self._copies += copies
        self._protected_pages = private_bytes // _PAGE_BYTES
        return seconds

    def charge(self, faults: int) -> float:
        """Return the seconds lost since the last call.

        Args:
            faults: minor faults of the target so far.
        """
        pages = min(max(faults - self._faults, 0), self._protected_pages)
        self._faults = faults
        self._protected_pages -= pages
        return pages * (COPY_SECONDS if self._copies else UNSHARE_SECONDS)

    def end(self, faults: int) -> float:
        """A copy has ended: return the seconds lost since the last call."""
        seconds = self.charge(faults)
        self._copies = max(self._copies - 1, 0)
        return seconds
