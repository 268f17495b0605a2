"""`sessiond top`: asks a server every few seconds and draws what it says until `q`."""

import contextlib
import time
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from sessiond.cli.ask_server import (
    DEFAULT_URL,
    JsonOption,
    KeyOption,
    UrlOption,
    print_json,
    server_at,
)
from sessiond.cli.server_api import ServerApi, ServerError
from sessiond.cli.top.keys import Keys
from sessiond.cli.top.page import History, View, top_page
from sessiond.cli.top.scrape import Between, Sample, read_values
from sessiond.cli.top.state import Order, TopState, on_key, shown

_PAGE = ConsoleDimensions(160, 50)  # where no terminal sets one


def top(
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Sessions to list, latest activity first.")
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """Watch a server: its pool, tiers, turns and sessions, live.

    Where there is no terminal, or with --json, one look is printed.
    """
    keys = Keys()
    with server_at(url, api_key) as server:
        if as_json:
            print_json(_as_object(_look(server, max_sessions)))
            return
        screen = _Screen(server, where=url, max_sessions=max_sessions)
        if not keys.interactive:
            console = Console(highlight=False, width=_PAGE.width)
            console.print(screen.page(_PAGE))
            return
        _watch(screen, keys, interval_s)


def _watch(screen: "_Screen", keys: Keys, interval_s: float) -> None:
    console = Console(highlight=False)
    with (
        contextlib.suppress(KeyboardInterrupt),
        keys.unbuffered(),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        next_look_s = time.monotonic()
        while not screen.state.leaving:
            live.update(screen.page(console.size), refresh=True)
            next_look_s = max(next_look_s, time.monotonic())
            for key in keys.wait(max(0.0, next_look_s - time.monotonic())):
                screen.press(key)
            if time.monotonic() >= next_look_s:
                screen.look()
                next_look_s += interval_s


class _Screen:
    """Owns what is shown: the last two looks, the lines, and what was chosen."""

    def __init__(self, server: ServerApi, *, where: str, max_sessions: int) -> None:
        self.state = TopState()
        self._server = server
        self._where = where
        self._max_sessions = max_sessions
        self._before: Sample | None = None
        self._now = _look(server, max_sessions)
        self._history = History()
        self._detail: dict[str, Any] | None = None

    def look(self) -> None:
        """Ask again; a server that does not answer is said so, and asked again later."""
        try:
            found = _look(self._server, self._max_sessions)
            self._detail = self._look_at_chosen()
        except ServerError as error:
            self.state = replace(self.state, message=str(error))
            return
        self.state = replace(self.state, message="")
        self._before, self._now = self._now, found
        self._history = self._history.with_sample(found, Between(self._before, found))

    def press(self, key: str) -> None:
        """Do what a key says."""
        self.state, order = on_key(self.state, key, shown(self.state, self._now.sessions))
        if order is None:
            if self.state.inspecting:
                self.look()
            return
        refusal = self._refusal_of(order)
        self.look()
        if refusal:
            self.state = replace(self.state, message=refusal)

    def page(self, size: ConsoleDimensions) -> Group:
        """What is to be seen now."""
        view = View(
            where=self._where,
            sample=self._now,
            between=Between(self._before, self._now),
            history=self._history,
            detail=self._detail,
        )
        return top_page(view, self.state, size)

    def _look_at_chosen(self) -> dict[str, Any] | None:
        chosen = self.state.chosen if self.state.inspecting else None
        return None if chosen is None else self._server.session(chosen)

    def _refusal_of(self, order: Order) -> str:
        """Carry an order out; why the server did not, if it did not."""
        act = {
            "reset": self._server.reset,
            "park": self._server.park,
            "close": self._server.close,
        }[order.action]
        try:
            act(order.session)
        except ServerError as error:
            return str(error)
        return ""


def _look(server: ServerApi, max_sessions: int) -> Sample:
    return Sample(
        at_s=time.time(),
        values=read_values(server.metrics()),
        capacity=server.capacity(),
        sessions=server.latest_sessions(max_sessions),
    )


def _as_object(sample: Sample) -> dict[str, object]:
    metrics = [
        {"name": name, "labels": dict(labels), "value": value}
        for (name, labels), value in sample.values.items()
    ]
    return {"capacity": sample.capacity, "sessions": sample.sessions, "metrics": metrics}
