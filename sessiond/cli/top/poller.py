"""Queries the server in its own thread, so that keys work while it does not answer."""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from sessiond.cli.scrape import Sample, read_values
from sessiond.cli.server_api import ServerApi, ServerError
from sessiond.cli.top.state import Order

_ORDER = {"reset": ServerApi.reset, "park": ServerApi.park, "close": ServerApi.close}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a query. `refusal`: why the server refused the action."""

    sample: Sample
    detail: dict[str, Any] | None = None
    refusal: str = ""


class Poller:
    """Runs one query at a time; requests during a query wait for its end."""

    def __init__(self, server: ServerApi, max_sessions: int) -> None:
        self._server = server
        self._max_sessions = max_sessions
        self._thread: threading.Thread | None = None
        self._since_s = 0.0
        self._results: deque[Found | ServerError] = deque()

    @property
    def waiting_s(self) -> float:
        """Seconds since the current query began, 0 without one."""
        return time.monotonic() - self._since_s if self._is_busy else 0.0

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, *, order: Order | None = None, chosen: str | None = None) -> bool:
        """Run the action, then query the server and the chosen session; False if busy."""
        if self._is_busy:
            return False
        self._since_s = time.monotonic()
        # a daemon: quitting does not wait for a server that hangs
        self._thread = threading.Thread(target=self._run, args=(order, chosen), daemon=True)
        self._thread.start()
        return True

    def collect(self) -> Found | ServerError | None:
        """Return the last result once, else None."""
        return self._results.popleft() if self._results else None

    def poll(self, *, order: Order | None = None, chosen: str | None = None) -> Found:
        """Query in the calling thread.

        Raises:
            ServerError: the server does not answer, or refuses the query.
        """
        refusal = "" if order is None else self._refusal_of(order)
        sample = Sample(
            at_s=time.time(),
            values=read_values(self._server.metrics()),
            capacity=self._server.capacity(),
            sessions=self._server.latest_sessions(self._max_sessions),
        )
        detail = None if chosen is None else self._server.session(chosen)
        return Found(sample=sample, detail=detail, refusal=refusal)

    def _run(self, order: Order | None, chosen: str | None) -> None:
        try:
            self._results.append(self.poll(order=order, chosen=chosen))
        except ServerError as error:
            self._results.append(error)

    def _refusal_of(self, order: Order) -> str:
        try:
            _ORDER[order.action](self._server, order.session)
        except ServerError as error:
            return str(error)
        return ""
