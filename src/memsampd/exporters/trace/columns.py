"""Accesses as columns that compress well, and back (docs/trace.md, "Accesses").

Most instructions make the same kind of access every time, at addresses a constant step apart. So
rows are told apart by *site* (instruction, size, load or store), numbered as they first appear:
straight-line code counts up by one, a loop repeats. Addresses are grouped by site and stored as
steps from one access of the site to its next: a scan, a stack slot, a global are runs of equal
steps. Numbers are split into byte planes, whose upper ones are mostly zero.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from memsampd.sampler.records import AccessChunk

BLOCK_ROWS = 1 << 18  # encoding needs some 100 bytes a row
MAX_BLOCK_ROWS = 1 << 20  # what a reader accepts
_RADIX_SORTED = 1 << 16  # numpy sorts 16-bit keys in linear time
_TABLE_BITS = 20
# Odd constants with well-mixed bits (of xxHash, splitmix64, and Steele and Vigna's tables).
_MIX_IP, _MIX_KIND, _MIX_ROUND = (
    np.uint64(number) for number in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0xD1342543DE82EF95)
)


class AccessBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="accesses"):
    """A chunk of accesses, encoded.

    Planes hold all lowest bytes first, then all second ones, and so on. A *folded* number is
    signed, with its sign in bit 0 (0, -1, 1, -2, ... become 0, 1, 2, 3, ...).

    Attributes:
        rows: accesses.
        sites: distinct (instruction, size, load or store) among them.
        site_ip: instruction of each site, folded differences to the site before, u64 planes.
        site_size: bytes that it references, u16 planes.
        site_is_write: whether it stores, a bit each, highest bit first.
        site_steps: site of each row, folded differences to the row before (the first to -1),
            u32 planes.
        address_steps: addresses, rows ordered by site and then by time; folded differences modulo
            2**64 to the row before of the same site, and of a site's first row to the first row of
            the site before; u64 planes.
    """

    rows: int
    sites: int
    site_ip: bytes
    site_size: bytes
    site_is_write: bytes
    site_steps: bytes
    address_steps: bytes


def encode(chunk: AccessChunk) -> AccessBlock:
    """Encode accesses.

    Args:
        chunk: at least one access, at most :data:`MAX_BLOCK_ROWS`.
    """
    firsts, sites = _find_sites(chunk)
    order = _by_site(sites, len(firsts))
    starts = _group_starts(sites, len(firsts))
    address = chunk.address[order]
    steps = np.diff(address, prepend=np.uint64(0))
    steps[starts] = np.diff(address[starts], prepend=np.uint64(0))
    return AccessBlock(
        rows=len(chunk),
        sites=len(firsts),
        site_ip=_to_planes(_fold(np.diff(chunk.ip[firsts], prepend=np.uint64(0))), "<u8"),
        site_size=_to_planes(chunk.size_bytes[firsts], "<u2"),
        site_is_write=np.packbits(chunk.is_write[firsts]).tobytes(),
        site_steps=_to_planes(_fold(np.diff(sites, prepend=-1).view(np.uint64)), "<u4"),
        address_steps=_to_planes(_fold(steps), "<u8"),
    )


def decode(block: AccessBlock) -> AccessChunk:
    """Decode accesses.

    Raises:
        ValueError: the columns do not fit together.
    """
    rows, count = block.rows, block.sites
    if not 0 < count <= rows <= MAX_BLOCK_ROWS:
        raise ValueError("a number of rows or sites out of range")
    ip = np.cumsum(_unfold(_from_planes(block.site_ip, "<u8", count)))
    size_bytes = _from_planes(block.site_size, "<u2", count).astype(np.uint16)
    is_write = _from_bits(block.site_is_write, count)
    sites = np.cumsum(_unfold(_from_planes(block.site_steps, "<u4", rows)).view(np.int64)) - 1
    if sites.min() < 0 or sites.max() >= count:
        raise ValueError("a row of no site")
    starts = _group_starts(sites, count)
    if np.any(np.diff(starts, append=rows) == 0):
        raise ValueError("a site without rows")
    steps = _unfold(_from_planes(block.address_steps, "<u8", rows))
    sums = np.cumsum(steps)
    beyond = np.cumsum(steps[starts]) - sums[starts]  # what sums hold that is not the site's
    address = np.empty(rows, np.uint64)
    address[_by_site(sites, count)] = sums + np.repeat(beyond, np.diff(starts, append=rows))
    return AccessChunk(ip[sites], address, size_bytes[sites], is_write[sites])


def _find_sites(chunk: AccessChunk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row of each site, ascending, and the site of each row.

    By hashing, for sorting takes ten times as long. All rows of a slot try to agree on the first
    of them; those of other sites try again in other slots. Each round settles a site of every slot.
    """
    rows = np.arange(len(chunk))
    first_row = np.empty(len(chunk), np.int64)
    kind = chunk.size_bytes.astype(np.uint64) << np.uint64(1) | chunk.is_write.astype(np.uint64)
    key = chunk.ip * _MIX_IP ^ kind * _MIX_KIND
    table = np.empty(1 << _TABLE_BITS, np.int64)
    todo = rows
    while len(todo):
        key = key * _MIX_ROUND
        slot = (key >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)
        table[slot[::-1]] = todo[::-1]  # of equal indices the last one stays: the first row
        first_row[todo] = candidate = table[slot]
        others = (chunk.ip[candidate] != chunk.ip[todo]) | (kind[candidate] != kind[todo])
        todo, key = todo[others], key[others]
    is_first = first_row == rows
    number = np.cumsum(is_first) - 1
    return np.flatnonzero(is_first), number[first_row]


def _by_site(sites: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Order of the rows by site, then by time."""
    keys = sites.astype(np.uint16) if count <= _RADIX_SORTED else sites
    return np.argsort(keys, kind="stable")


def _group_starts(sites: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Where each site's rows begin in that order, shape (count,)."""
    counts = np.bincount(sites, minlength=count)
    return np.cumsum(counts) - counts


def _fold(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    signed = numbers.view(np.int64)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def _unfold(folded: NDArray[np.unsignedinteger]) -> NDArray[np.uint64]:
    wide = folded.astype(np.uint64)
    return (wide >> np.uint64(1)) ^ (np.uint64(0) - (wide & np.uint64(1)))


def _to_planes(numbers: NDArray[np.unsignedinteger], kind: str) -> bytes:
    narrow = np.ascontiguousarray(numbers.astype(kind))
    return narrow.view(np.uint8).reshape(len(narrow), -1).T.tobytes()


def _from_planes(raw: bytes, kind: DTypeLike, count: int) -> NDArray[np.unsignedinteger]:
    planes = np.frombuffer(raw, np.uint8)
    width = np.dtype(kind).itemsize
    if len(planes) != width * count:
        raise ValueError("a column of the wrong length")
    numbers: NDArray[np.unsignedinteger] = planes.reshape(width, count).T.copy().view(kind).ravel()
    return numbers


def _from_bits(raw: bytes, count: int) -> NDArray[np.bool_]:
    if len(raw) != (count + 7) // 8:
        raise ValueError("a column of the wrong length")
    return np.unpackbits(np.frombuffer(raw, np.uint8), count=count).astype(np.bool_)
