"""Files of frames, which recordings and traces are.

A file is a prelude, eight letters and the version of the format as a little-endian u16, and then
frames. A frame is three little-endian u32, the payload's length, the CRC-32 of these four bytes and
the CRC-32 of the payload, and the payload. The length has its own check so that a damaged length is
told from a file that just ends early. Where frames are numbered, the payload's check begins with
the number of the frame in place of 0: a lost or swapped frame is noticed.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import msgspec

from memsampd.closing import Closing
from memsampd.errors import MemsampdError
from memsampd.exporters.files import FileKind, open_input, open_new, read_some, write_all

PRELUDE = struct.Struct("<8sH")
FRAME_HEADER = struct.Struct("<III")
MAX_FRAME_BYTES = 64 << 20  # of a payload, and of what it holds once decompressed


class FrameFormat(msgspec.Struct, frozen=True):
    """A format of files of frames.

    Attributes:
        kind: of the files.
        magic: the eight letters that they begin with.
        version: of the format.
        numbered: frames are numbered.
        source: what writes such files, for people.
    """

    kind: FileKind
    magic: bytes
    version: int
    numbered: bool
    source: str

    def prelude(self) -> bytes:
        """Return the first bytes of a file."""
        return PRELUDE.pack(self.magic, self.version)


def frame(payload: bytes, number: int = 0) -> bytes:
    """Return a payload as a frame.

    Args:
        payload: of at most ``MAX_FRAME_BYTES``.
        number: of the frame, where frames are numbered.
    """
    length = struct.pack("<I", len(payload))
    return (
        FRAME_HEADER.pack(len(payload), zlib.crc32(length), zlib.crc32(payload, number)) + payload
    )


def payload_of(single: bytes) -> bytes:
    """Return the payload of a frame that stands alone.

    Raises:
        ValueError: it is damaged, or no single frame.
    """
    if len(single) < FRAME_HEADER.size:
        raise ValueError("a frame without a header")
    length, check = _read_header(single[: FRAME_HEADER.size])
    payload = single[FRAME_HEADER.size :]
    if length != len(payload):
        raise ValueError("a frame of another length than it says")
    return _checked(payload, check, 0)


def _read_header(header: bytes) -> tuple[int, int]:
    """Return the length of the payload in bytes, and its check."""
    length, length_check, payload_check = FRAME_HEADER.unpack(header)
    if zlib.crc32(header[:4]) != length_check or length > MAX_FRAME_BYTES:
        raise ValueError("damaged length")
    return length, payload_check


def _checked(payload: bytes, check: int, number: int) -> bytes:
    if zlib.crc32(payload, number) != check:
        raise ValueError("wrong checksum")
    return payload


class FrameReader(Closing):
    """Reads the frames of a file one after the other.

    Args:
        path: the file.
        format: what it must be.

    Attributes:
        bytes_read: how much of the file has been read.

    Raises:
        MemsampdError: the kind's: no such file, of another kind or version, or no whole prelude.
    """

    def __init__(self, path: Path, format: FrameFormat) -> None:
        self.path = path
        self.bytes_read = 0
        self._kind = format.kind
        self._numbered = format.numbered
        self._number = 0
        self._file = open_input(path, format.kind)
        try:
            self._check_prelude(format)
        except BaseException:
            self.close()
            raise

    def _check_prelude(self, format: FrameFormat) -> None:
        start, name, error = self._read(PRELUDE.size), format.kind.name, format.kind.error
        if not start.startswith(format.magic):
            cause = f"{self.path} is empty" if not start else f"{self.path} is no memsampd {name}"
            raise error(cause, f"name a file that {format.source} wrote")
        if len(start) < PRELUDE.size:
            raise error(
                f"{self.path} ends early, before its first record",
                "memsampd was stopped at once: begin again",
            )
        _, version = PRELUDE.unpack(start)
        if version != format.version:
            raise error(
                f"{self.path} has format version {version}, this memsampd reads version "
                f"{format.version}",
                "read it with the memsampd that wrote it",
            )

    def next(self) -> bytes | None:
        """Return the next payload; None at the end of the file.

        Raises:
            EOFError: the file ends inside a frame.
            ValueError: the frame is damaged.
            MemsampdError: the kind's: the file cannot be read.
        """
        header = self._read(FRAME_HEADER.size)
        if not header:
            return None
        if len(header) < FRAME_HEADER.size:
            raise EOFError
        length, check = _read_header(header)
        payload = self._read(length)
        if len(payload) < length:
            raise EOFError
        number, self._number = self._number, self._number + self._numbered
        return _checked(payload, check, number)

    def has_more(self) -> bool:
        """Whether this is not the end of the file; what is looked at is read."""
        return bool(self._read(1))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _read(self, size_bytes: int) -> bytes:
        data = read_some(self._file, size_bytes, self.path, self._kind)
        self.bytes_read += len(data)
        return data


class FrameWriter:
    """Appends frames to a file; each is in the kernel's hands when the call returns.

    Args:
        path: file to make.
        format: what it is to be.
        overwrite: replace a file that is there already.

    Attributes:
        whole_bytes: size of the prelude and all frames.

    Raises:
        MemsampdError: the kind's: the file exists or cannot be written.
    """

    def __init__(self, path: Path, format: FrameFormat, *, overwrite: bool = False) -> None:
        self.path = path
        self.whole_bytes = 0
        self._kind = format.kind
        self._numbered = format.numbered
        self._number = 0
        self._file = open_new(path, format.kind, overwrite)
        try:
            self._put(format.prelude())
        except MemsampdError:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._file.closed

    def append(self, payload: bytes) -> None:
        """Write a frame, whole or not at all.

        Raises:
            MemsampdError: the kind's: it cannot be written.
        """
        self._put(frame(payload, self._number))
        self._number += self._numbered

    def cut(self, whole_bytes: int) -> None:
        """Drop what is behind so many bytes; where that is impossible the file is closed."""
        self.whole_bytes = whole_bytes
        try:
            os.ftruncate(self._file.fileno(), whole_bytes)
            self._file.seek(whole_bytes)
        except OSError:  # a pipe or the like
            self._file.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _put(self, data: bytes) -> None:
        try:
            write_all(self._file, data, self.path, self._kind)
        except MemsampdError:
            self.cut(self.whole_bytes)  # nothing must follow half a frame
            raise
        self.whole_bytes += len(data)
