"""Bytes made wrong at random, from a seed; no coverage is looked at. Pure."""

import random

# what readers of numbers, texts, lengths and markup take for something
_WORDS = (
    b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\x00\x00\x00\x80",
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"1e999", b"-1", b"NaN",
    b"9" * 30, b"[" * 2000, b"\\ud800", b"\\u0000", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    "\u202e\u0000\ufeff\U0001f9d9".encode(), b"<|im_end|>", b"{{", b"}}", b"{%", b"%}", b"\r\n",
)  # fmt: skip


def mutated(draw: random.Random, seeds: list[bytes], longest: int = 1 << 16) -> bytes:
    """One of the seeds with some places cut, doubled, swapped, or written over."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 6)):
        start = draw.randint(0, len(data))
        end = min(len(data), start + draw.choice((0, 1, 2, 4, 8, 64)))
        match draw.randrange(5):
            case 0:
                data[start:end] = b""
            case 1:
                data[start:start] = draw.choice(_WORDS)
            case 2:
                data[start:end] = draw.choice(_WORDS)
            case 3:
                data[start:start] = data[start:end] * draw.choice((1, 2, 100))
            case _:
                data[start:end] = draw.randbytes(end - start)
    return bytes(data[:longest])
