"""`sessiond top`: queries a server every few seconds and draws its state until `q`."""

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
from sessiond.cli.scrape import Between, Sample
from sessiond.cli.server_api import ServerError
from sessiond.cli.top.keys import Keys
from sessiond.cli.top.page import TopHistory, TopView, top_page
from sessiond.cli.top.poller import Poller
from sessiond.cli.top.state import Order, TopState, on_key, shown

_COLLECT_EVERY_S = 0.1
_QUIET_S = 2.0  # before a missing answer is shown
_PAGE = ConsoleDimensions(160, 50)  # without a terminal


def top(
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between two samples.")
    ] = 2.0,
    max_sessions: Annotated[
        int,
        typer.Option(min=1, help="Maximum number of sessions in the list, latest activity first."),
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """Show a server's pool, tiers, turns and sessions live.

    Without a terminal, or with --json, one sample is printed.
    """
    keys = Keys()
    with server_at(url, api_key) as server:
        poller = Poller(server, max_sessions)
        if as_json:
            print_json(_as_object(poller.poll().sample))
            return
        screen = _Screen(poller, where=url)
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
        next_poll_s = time.monotonic() + interval_s
        while not screen.state.leaving:
            live.update(screen.page(console.size), refresh=True)
            left_s = max(0.0, next_poll_s - time.monotonic())
            for key in keys.wait(min(left_s, _COLLECT_EVERY_S)):
                screen.press(key)
            screen.collect()
            if time.monotonic() >= next_poll_s:
                screen.poll()
                next_poll_s = time.monotonic() + interval_s


class _Screen:
    """Owns the page's state: the last two samples, the history, and the selection."""

    def __init__(self, poller: Poller, *, where: str) -> None:
        self.state = TopState()
        self._poller = poller
        self._where = where
        self._before: Sample | None = None
        self._now = poller.poll().sample
        self._history = TopHistory()
        self._detail: dict[str, Any] | None = None
        self._order: Order | None = None  # waits until the current query ends

    def poll(self) -> None:
        """Start the next query, if none is running."""
        chosen = self.state.chosen if self.state.inspecting else None
        if self._poller.start(order=self._order, chosen=chosen):
            self._order = None

    def collect(self) -> None:
        """Take the server's answer, or show that there is none."""
        found = self._poller.collect()
        if isinstance(found, ServerError):
            self.state = replace(self.state, message=str(found))
        elif found is not None:
            self.state = replace(self.state, message=found.refusal)
            self._detail = found.detail
            self._before, self._now = self._now, found.sample
            self._history = self._history.with_sample(
                found.sample, Between(self._before, found.sample)
            )
        elif self._poller.waiting_s > _QUIET_S:
            waited = f"the server has not answered for {self._poller.waiting_s:.0f} s"
            self.state = replace(self.state, message=waited)
        if self._order is not None:
            self.poll()

    def press(self, key: str) -> None:
        """Handle a key."""
        self.state, order = on_key(self.state, key, shown(self.state, self._now.sessions))
        self._order = order or self._order
        if order is not None or self.state.inspecting:
            self.poll()

    def page(self, size: ConsoleDimensions) -> Group:
        """Build the current page."""
        view = TopView(
            where=self._where,
            sample=self._now,
            between=Between(self._before, self._now),
            history=self._history,
            detail=self._detail,
        )
        return top_page(view, self.state, size)


def _as_object(sample: Sample) -> dict[str, object]:
    metrics = [
        {"name": name, "labels": dict(labels), "value": value}
        for (name, labels), value in sample.values.items()
    ]
    return {"capacity": sample.capacity, "sessions": sample.sessions, "metrics": metrics}
