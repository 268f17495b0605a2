"""Checks a compiled library before it is loaded. Pure but for reading the file."""

import struct
from pathlib import Path

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # System V gABI, figure 4-3
_SEGMENT = struct.Struct("<IIQQQQQQ")  # figure 5-1


def check_whole(path: Path) -> None:
    """Refuse a library that is shorter than its headers say.

    Loading it would end the process: the missing pages are mapped, and reading them raises SIGBUS.
    Files of other formats than 64-bit little-endian ELF are left to the loader.

    Raises:
        OSError: the file is missing, unreadable or cut short.
    """
    with path.open("rb") as file:
        data = file.read()
    if not data:
        raise OSError(f"{path} must be a compiled library (got an empty file)")
    if not data.startswith(_ELF64_LITTLE):
        return
    needed = _HEADER.size
    if len(data) >= needed:
        needed = max(needed, _end_of_elf(data))
    if len(data) < needed:
        raise OSError(f"{path} must have at least {needed} bytes (got {len(data)}): build it again")


def _end_of_elf(data: bytes) -> int:
    """Where the segments and the tables of an ELF file end."""
    _, _, _, _, _, segments, sections, _, _, size, count, section_size, section_count, _ = (
        _HEADER.unpack_from(data)
    )
    ends: list[int] = [segments + size * count, sections + section_size * section_count]
    if size == _SEGMENT.size and len(data) >= ends[0]:
        for place in range(segments, ends[0], size):
            _, _, offset, _, _, in_file, _, _ = _SEGMENT.unpack_from(data, place)
            ends.append(offset + in_file)
    return max(ends)
