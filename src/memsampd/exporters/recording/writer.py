"""Appends what a session observes to a recording."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from memsampd.closing import Closing
from memsampd.errors import RecordingError
from memsampd.exporters.frames import FrameWriter, frame
from memsampd.exporters.recording.format import (
    FORMAT,
    HeaderRecord,
    Record,
    StopRecord,
    SummaryRecord,
    encode,
)
from memsampd.exporters.snapshot import Snapshot

logger = logging.getLogger(__name__)

# So many of the last records may be given up for the one that says where the recording stops.
_MOST_GIVEN_UP = 16


class RecordingWriter(Closing):
    """An exporter that keeps everything.

    Windows, bursts, merges and rates are appended with :meth:`write` as they come; each is in the
    kernel's hands when the call returns, so that a memsampd that is killed loses nothing before.
    The last published snapshot becomes the summary when the recording is closed.

    As a context manager it is closed in the end; where that comes by an exception, the last record
    says so, and there is no summary.

    A record that cannot be written (a full disk) ends the recording, not the session: it is logged,
    the file's last record says so, nothing more is written, and closing fails.

    Args:
        path: file to make.
        header: the first record.
        overwrite: replace a file that is there already.

    Raises:
        RecordingError: the file exists or cannot be written.
    """

    def __init__(self, path: Path, header: HeaderRecord, *, overwrite: bool = False) -> None:
        self._last: Snapshot | None = None
        self._ends: deque[int] = deque(maxlen=_MOST_GIVEN_UP)  # of the last records, in bytes
        self._failure: RecordingError | None = None
        self._frames = FrameWriter(path, FORMAT, overwrite=overwrite)
        try:
            self._append(encode(header))
        except RecordingError:
            self._frames.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        reason = f"observing broke off: {error!r}"
        self.write(StopRecord(reason=reason, observing_ended=True))
        self._last = None
        with suppress(RecordingError):  # it was logged
            self.close()

    def write(self, record: Record) -> None:
        """Append a record; where that fails the recording stops."""
        if self._frames.closed:
            return
        try:
            self._append(encode(record))
        except RecordingError as error:
            self._stop(error)

    def publish(self, snapshot: Snapshot) -> None:
        """Keep the state for the summary."""
        self._last = snapshot

    def close(self, exit_reason: str = "") -> None:
        """Write the summary and close the file; a second call does nothing.

        Args:
            exit_reason: why the session ends; by default whether the target still runs.

        Raises:
            RecordingError: the recording lacks its end.
        """
        if not self._frames.closed:
            if self._last is not None:
                self.write(_summary(self._last, exit_reason))
            self._frames.close()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _stop(self, failure: RecordingError) -> None:
        """Say in the file that it stops here, at the price of the last records if need be."""
        self._failure = failure
        last = encode(StopRecord(reason=failure.cause))
        needed = len(frame(last))
        before, room = self._frames.whole_bytes, iter(reversed(self._ends))
        while not self._frames.closed and not self._fits(last):
            # What was written already has its place on the disk.
            end = next((end for end in room if end + needed <= before), None)
            if end is None:
                break
            self._frames.cut(end)
        self._frames.close()
        logger.error("the recording stops here, whatever is observed later: %s", failure)

    def _fits(self, payload: bytes) -> bool:
        """Append a last record, if there is room for it."""
        try:
            self._append(payload)
        except RecordingError:
            return False
        return True

    def _append(self, payload: bytes) -> None:
        self._frames.append(payload)
        self._ends.append(self._frames.whole_bytes)


def _summary(last: Snapshot, exit_reason: str) -> SummaryRecord:
    return SummaryRecord(
        alive=last.alive,
        exit_reason=exit_reason or ("memsampd detached" if last.alive else "the target ended"),
        overhead=last.overhead,
        tally=last.tally,
        windows=last.estimate.windows,
        samples=last.samples,
        lost=last.lost,
        throttled=last.throttled,
        burst_ends=dict(last.burst_ends),
        errors=dict(last.errors),
        prediction_accuracy=last.prediction_accuracy,
        addresses=last.addresses,
        child_share=last.child_share,
    )
