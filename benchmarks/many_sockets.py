"""Sockets by the thousand from one process: each does no more than a client must. Asyncio only."""

import asyncio
import resource
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

_SPARE_FILES = 200
_OPEN_WITHIN_S = 120.0


class FewFilesError(Exception):
    """The system allows too few open files; says how many are needed and allowed."""


def allow_files(count: int) -> None:
    """Raise the soft limit of open files, as far as so many sockets need.

    Raises:
        FewFilesError: the hard limit is lower.
    """
    needed = count + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise FewFilesError(f"{needed} open files are needed, the system allows {hard}")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class SmallSocket(asyncio.Protocol):
    """A client's end that reads at once: answers pings, counts them and messages, notes its end.

    `opened_after_s`: from the start of the connection to the answer of the handshake.
    `close_code`: None while it is open, 1006 if the connection ended without a close frame.
    """

    def __init__(self, url: str) -> None:
        self._client = ClientProtocol(parse_uri(url))
        self._transport: asyncio.Transport | None = None
        self._started_s = time.perf_counter()
        self._answered = asyncio.Event()
        self._heard = asyncio.Event()
        self.status: int | None = None
        self.opened_after_s = 0.0
        self.messages = 0
        self.pings = 0
        self.close_code: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was let in and has not been closed since."""
        return self.status == HTTPStatus.SWITCHING_PROTOCOLS and self.close_code is None

    async def answered(self) -> None:
        """Wait for the answer to the handshake, or the connection's end."""
        await self._answered.wait()

    async def heard(self) -> None:
        """Wait for the first message, or the connection's end."""
        await self._heard.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        self._client.send_request(self._client.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take what came, and answer what wants an answer."""
        self._client.receive_data(data)
        for event in self._client.events_received():
            if isinstance(event, Response):
                self.status = event.status_code
                self.opened_after_s = time.perf_counter() - self._started_s
                self._answered.set()
            elif isinstance(event, Frame):
                self._take(event)
        self._flush()

    def connection_lost(self, _error: Exception | None) -> None:
        """Note how it ended."""
        if self.close_code is None:
            self.close_code = 1006
        self._answered.set()
        self._heard.set()

    def send_text(self, text: str) -> None:
        """Send one message."""
        self._client.send_text(text.encode())
        self._flush()

    def leave(self) -> None:
        """Say goodbye; the server ends the connection."""
        if self.is_open:
            self._client.send_close(1000)
            self._flush()

    def abort(self) -> None:
        """Leave without a word."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.PING:
                self.pings += 1
            case Opcode.CLOSE:
                closed = self._client.close_rcvd
                self.close_code = closed.code if closed else 1005
            case Opcode.TEXT:
                self.messages += 1
                self._heard.set()

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.writelines([data for data in self._client.data_to_send() if data])


async def open_one(url: str) -> SmallSocket:
    """Open one socket and wait for the server's answer, which may be a refusal.

    Raises:
        OSError: there is no connection.
    """
    uri = parse_uri(url)
    loop = asyncio.get_running_loop()
    _, opened = await loop.create_connection(lambda: SmallSocket(url), uri.host, uri.port)
    async with asyncio.timeout(_OPEN_WITHIN_S):
        await opened.answered()
    return opened


async def open_many(url: str, count: int, *, at_once: int = 64) -> Sequence[SmallSocket]:
    """Open so many sockets, `at_once` at a time.

    Raises:
        RuntimeError: one was not let in.
    """
    sockets: list[SmallSocket] = []
    while len(sockets) < count:
        batch = min(at_once, count - len(sockets))
        sockets += await asyncio.gather(*(open_one(url) for _ in range(batch)))
    refused = [one.status for one in sockets if not one.is_open]
    if refused:
        raise RuntimeError(f"{len(refused)} of {count} sockets were not let in: {refused[0]}")
    return sockets
