"""What has come up while a target is observed, told to the user once."""

from __future__ import annotations

import logging
from collections.abc import Iterable


class NoteTeller:
    """Logs sentences that sources repeat, each kind of thing once.

    What stands before the first colon is the kind: behind it are figures, which change.

    Args:
        logger: takes them, as warnings.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: set[str] = set()

    def tell(self, notes: Iterable[str]) -> None:
        """Log what is new of these."""
        for note in notes:
            kind = note.partition(":")[0]
            if kind not in self._told:
                self._told.add(kind)
                self._logger.warning(note)
