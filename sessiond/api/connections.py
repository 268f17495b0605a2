"""Open sockets, and whether new work is accepted. Asyncio thread only."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sessiond.errors import RequestError


class Connections:
    """Counts open sockets and signals them to close."""

    def __init__(self) -> None:
        self._open: set[asyncio.Event] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._draining = False
        self._closing = False

    @property
    def open_count(self) -> int:
        """Number of open sockets."""
        return len(self._open)

    @property
    def draining(self) -> bool:
        """Whether the server is shutting down and refuses new work."""
        return self._draining

    @contextmanager
    def joined(self) -> Iterator[asyncio.Event]:
        """Count a socket; the event is set when the socket has to close (1012)."""
        leave = asyncio.Event()
        if self._closing:  # authenticated before the drain, accepted after `close_all` began
            leave.set()
        self._open.add(leave)
        self._none_open.clear()
        try:
            yield leave
        finally:
            self._open.discard(leave)
            if not self._open:
                self._none_open.set()

    def refuse_if_draining(self) -> None:
        """Refuse new work during a drain.

        Raises:
            RequestError: `draining`.
        """
        if self._draining:
            raise RequestError("draining", "the server is shutting down", retry_after_s=1)

    def begin_drain(self) -> None:
        """Refuse sockets and turns from now on."""
        self._draining = True

    async def close_all(self) -> None:
        """Signal every socket to close and wait until all are closed."""
        self._closing = True
        for leave in self._open:
            leave.set()
        await self._none_open.wait()
