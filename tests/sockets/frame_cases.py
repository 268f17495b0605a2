"""What frames must be answered by (RFC 6455): `python -m tests.sockets.frame_cases` counts them.

A case is a name, the frames, and the code of the close that they must meet; OPEN: none.
"""

import asyncio
import csv
import logging
from pathlib import Path

from rich.console import Console
from rich.table import Table
from websockets.frames import Opcode

from tests.api.scripted import ScriptedService, reply
from tests.harness.serving import gateway_of, serving
from tests.sockets.echo import echoing
from tests.sockets.raw_peer import close, frame, raw_peer

OPEN = "open"
MAX_BYTES = 4096
CODES = Path(__file__).parents[1] / "data" / "ws_close_codes.csv"
TEXT, BYTES, CONT = Opcode.TEXT, Opcode.BINARY, Opcode.CONT
PING, PONG, CLOSE = Opcode.PING, Opcode.PONG, Opcode.CLOSE

FRAMING = [  # section 5
    *((f"reserved bits {bits}", [frame(TEXT, b"{}", rsv=bits)], 1002) for bits in range(1, 8)),
    *(
        (f"unknown opcode {opcode:#x}", [frame(opcode)], 1002)
        for opcode in (*range(3, 8), *range(11, 16))
    ),
    ("a frame that is not masked", [frame(TEXT, b"{}", masked=False)], 1002),
    *(
        (f"125 bytes in a {opcode.name}", [frame(opcode, b"x" * 125)], OPEN)
        for opcode in (PING, PONG)
    ),
    *(
        (f"126 bytes in a {opcode.name}", [frame(opcode, b"x" * 126)], 1002)
        for opcode in (PING, PONG, CLOSE)
    ),
    *(
        (f"a {opcode.name} in fragments", [frame(opcode, fin=False), frame(CONT)], 1002)
        for opcode in (PING, PONG, CLOSE)
    ),
    ("a pong that nobody asked for", [frame(PONG, b"x")], OPEN),
    ("an end without a beginning", [frame(CONT, b"x")], 1002),
    ("a middle without a beginning", [frame(CONT, b"x", fin=False)], 1002),
    ("a text amid a text", [frame(TEXT, b"{", fin=False), frame(TEXT, b"}")], 1002),
    ("bytes amid a text", [frame(TEXT, b"{", fin=False), frame(BYTES, b"}")], 1002),
    ("a text amid bytes", [frame(BYTES, b"{", fin=False), frame(TEXT, b"}")], 1002),
    ("two fragments", [frame(TEXT, b"{", fin=False), frame(CONT, b"}")], OPEN),
    (
        "a thousand empty fragments",
        [frame(TEXT, b"{", fin=False), *[frame(CONT, fin=False)] * 1000, frame(CONT, b"}")],
        OPEN,
    ),
    (
        "a ping between fragments",
        [frame(TEXT, b"{", fin=False), frame(PING, b"x"), frame(CONT, b"}")],
        OPEN,
    ),
    ("bytes that are no UTF-8", [frame(BYTES, b"\xc3\x28")], OPEN),
    ("an empty text", [frame(TEXT)], OPEN),
    ("as much as is allowed", [frame(TEXT, b"x" * MAX_BYTES)], OPEN),
    ("a byte more", [frame(TEXT, b"x" * (MAX_BYTES + 1))], 1009),
    ("a claim of 2^62 bytes", [frame(TEXT, length=2**62)], 1009),
    (
        "a byte more in fragments",
        [frame(TEXT, b"x" * MAX_BYTES, fin=False), frame(CONT, b"x", fin=False)],
        1009,
    ),
]

CLOSING = [  # section 7
    ("a close without a code", [frame(CLOSE)], None),
    ("a close of one byte", [frame(CLOSE, b"\x03")], 1002),
    ("a reason of 123 bytes", [close(1000, b"x" * 123)], 1000),
    ("a reason that is no UTF-8", [close(1000, b"\xc3\x28")], 1007),
    ("a ping behind the close", [close(1000), frame(PING)], 1000),
    ("a wrong frame behind the close", [close(1000), frame(TEXT, b"{}", rsv=7)], 1000),
    ("a second close", [close(1001), close(1002)], 1001),
    ("a close amid a text", [frame(TEXT, b"{", fin=False), close(1000), frame(CONT)], 1000),
]

BAD_UTF8 = {
    "an end that is missing": b"\xc3",
    "a byte that ends nothing": b"\x80",
    "a wrong second byte": b"\xc3\x28",
    "a surrogate": b"\xed\xa0\x80",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "a byte that never occurs": b"\xff",
    "a slash of two bytes": b"\xc0\xaf",
    "a slash of three bytes": b"\xe0\x80\xaf",
    "five bytes": b"\xf8\x88\x80\x80\x80",
}
KAPPA = "κόσμε𝄞".encode()

UTF8 = [  # section 8
    *((name, [frame(TEXT, b'{"' + text)], 1007) for name, text in BAD_UTF8.items()),
    *(
        (f"{name}, first of two fragments", [frame(TEXT, text, fin=False)], 1007)
        for name, text in BAD_UTF8.items()
        if name != "an end that is missing"
    ),
    *(
        (f"{name}, later", [frame(TEXT, b"x", fin=False), frame(CONT, text, fin=False)], 1007)
        for name, text in BAD_UTF8.items()
        if name != "an end that is missing"
    ),
    (
        "an end that is missing, in the last fragment",
        [frame(TEXT, b"\xc3", fin=False), frame(CONT)],
        1007,
    ),
    *(
        (f"split at byte {at}", [frame(TEXT, KAPPA[:at], fin=False), frame(CONT, KAPPA[at:])], OPEN)
        for at in range(len(KAPPA) + 1)
    ),
    (
        "every byte a fragment",
        [
            frame(TEXT, fin=False),
            *(frame(CONT, bytes([byte]), fin=False) for byte in KAPPA),
            frame(CONT),
        ],
        OPEN,
    ),
    (
        "each message begins anew",
        [frame(BYTES, b"\xc3", fin=False), frame(CONT), frame(TEXT, b"\x28")],
        OPEN,
    ),
]


def codes():
    """Each end of each range of the table, and whether a client may send it."""
    with CODES.open(newline="") as file:
        for row in csv.DictReader(file):
            ends = sorted({int(end) for end in row["code"].split("-")})
            middle = [sum(ends) // 2] if len(ends) > 1 else []
            for code in (*ends, *middle):
                yield code, row["may_appear_in_close_frame"] != "no"


CODE_CASES = [
    *(
        (f"close {code}", [close(code)], code if is_allowed else 1002)
        for code, is_allowed in codes()
    ),
    *((f"close {code}", [close(code)], 1002) for code in (5000, 65535)),
]

SECTIONS = {"5": FRAMING, "7": CLOSING, "7.4": CODE_CASES, "8": UTF8}


async def outcome(url, frames, wanted, *, bytewise=False):
    """How it ends: OPEN, or the code of the close."""
    async with raw_peer(url) as peer:
        for data in frames:
            for chunk in (data[at : at + 1] for at in range(len(data))) if bytewise else (data,):
                peer.send(chunk)
                if bytewise:
                    await peer.writer.drain()
        if wanted == OPEN:
            return OPEN if await peer.is_answered() else "closed"
        return await peer.close_code()


async def wrong_outcomes(url, cases):
    """The cases that do not end as they should: name and outcome."""
    return [
        (name, found)
        for name, frames, wanted in cases
        if (found := await outcome(url, frames, wanted)) != wanted
    ]


def conversation():
    """Serve the conversation's socket: each reply is an x."""
    gateway = gateway_of(ScriptedService(lambda _: reply("x")), max_frame_bytes=MAX_BYTES)
    return serving(gateway)


async def _counts(title, url):
    table = Table("section of RFC 6455", "cases", "as they should be", "wrong", title=title)
    for section, cases in SECTIONS.items():
        wrong = await wrong_outcomes(url, cases)
        names = ", ".join(f"{name}: {found}" for name, found in wrong)
        table.add_row(section, str(len(cases)), str(len(cases) - len(wrong)), names)
    Console().print(table)


async def _main():
    async with echoing(max_frame_bytes=MAX_BYTES) as url:
        await _counts("echo", url)
    async with conversation() as served:
        await _counts("conversation", served.ws_url)


if __name__ == "__main__":
    logging.disable()
    asyncio.run(_main())
