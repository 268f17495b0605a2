"""Parses and formats sizes in bytes: "2GiB", "512 MiB", "1000". Pure."""

import re

_UNITS = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_LEAST_BARE = 1000  # smaller numbers without a unit are rarely meant as bytes
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
BYTE_SIZES = (
    "bytes, or a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB, as in "
    '"2GiB"; below 1000 with its unit'
)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that `text` stands for.

    Raises:
        ValueError: `text` is not a size, or a small number without a unit; the message says what is
            allowed.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    is_bare_few = match is not None and not match[2] and 0 < float(match[1]) < _LEAST_BARE
    if match is None or unit is None or is_bare_few:
        raise ValueError(BYTE_SIZES)
    return int(float(match[1]) * unit)


def format_bytes(size: int) -> str:
    """Format a size with about three digits: "312 MiB", "4.0 GiB"."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
