"""The append-only dictionary of names beside the ring.

An entry is its length, its CRC-32 and its UTF-8 text; position 0 is the empty name and is not stored.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_ENTRY: Final = struct.Struct("<2I")
_SEED: Final = 0x4F564652  # so that zeroed bytes are no valid entry


def encode_name(name: str) -> bytes:
    """Return the bytes of one entry."""
    text = name.encode("utf-8", "backslashreplace")
    return _ENTRY.pack(len(text), zlib.crc32(text, _SEED)) + text


def read_names(data: bytes) -> tuple[list[str], int]:
    """Return the names in a names file's bytes, position 0 being "", and how many bytes at the end are torn."""
    names, at = [""], 0
    while at + _ENTRY.size <= len(data):
        length, checksum = _ENTRY.unpack_from(data, at)
        text = data[at + _ENTRY.size : at + _ENTRY.size + length]
        if len(text) != length or zlib.crc32(text, _SEED) != checksum:
            break
        names.append(text.decode("utf-8", "replace"))
        at += _ENTRY.size + length
    return names, len(data) - at
