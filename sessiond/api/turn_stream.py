"""A turn over HTTP: as one JSON object, or as server-sent events. Asyncio thread only.

Both detect a disconnect during the turn and cancel it; the remaining events are then read up to
the terminal one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessiond.api.http import session_header, watch_disconnect
from sessiond.api.limits import GatewayLimits
from sessiond.api.protocol.events import error_event
from sessiond.api.protocol.resources import Json
from sessiond.api.refusal import json_response
from sessiond.api.replay import ResponseEventEncoder, too_slow
from sessiond.domain import TurnError, TurnFinished, TurnLogEntry
from sessiond.errors import ErrorCode, RequestError
from sessiond.sessions.demand import DrainRate
from sessiond.sessions.turn import EntriesLostError, LogReplay, Turn

HEARTBEAT = b": still here\n\n"
_RESTART_S = 1  # the next turn waits if the engine is not ready by then


class EventEncoder(Protocol):
    """Encodes log entries of a turn as events or chunks."""

    def opening_events(self) -> Iterator[Json]:
        """Yield the events before the first log entry."""
        ...

    def encode(self, entry: TurnLogEntry) -> Iterator[Json]:
        """Yield the events of a log entry."""
        ...


async def whole_response(
    turn: Turn | LogReplay, request: Request, drain_rate: DrainRate
) -> Response:
    """Wait for the turn to end and build the response object.

    Raises:
        RequestError: the turn failed, with its code.
    """
    event_encoder = ResponseEventEncoder.of(turn.accepted, None)
    await play(turn, event_encoder, request, drain_rate)
    return json_response(event_encoder.encoder.response, headers=response_headers(turn, request))


async def play(
    turn: Turn | LogReplay, event_encoder: EventEncoder, request: Request, drain_rate: DrainRate
) -> None:
    """Feed the turn to the encoder up to its end, or cancel it when its client disconnects.

    Raises:
        RequestError: the turn failed, with its code.
    """
    error: TurnError | None = None
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(watch_disconnect(request.receive, lambda: _cancel(turn)))
        async for entry in turn.entries():
            for _ in event_encoder.encode(entry):
                pass
            if isinstance(entry, TurnFinished):
                error = entry.error
        watch.cancel()
    if error is not None:
        raise RequestError(
            error.code,
            error.message,
            retry_after_s=_retry_after_s(error.code, drain_rate),
            headers=turn.headers,
        )


def response_headers(turn: Turn | LogReplay, request: Request) -> dict[str, str]:
    """Build the headers: the user's remaining quota, and the session's id or client name."""
    headers = {**turn.headers, "x-session-id": turn.accepted.session_id}
    return headers | {
        key.decode(): value.decode("latin-1") for key, value in session_header(request.scope)
    }


def _cancel(turn: Turn | LogReplay) -> None:
    """Cancel a turn that no client waits for; its session is rolled back."""
    if isinstance(turn, LogReplay) or turn.accepted.request.background:
        return
    turn.cancel(keep=False, reason="disconnected")


class EventStream:
    """An ASGI response of server-sent events, with comments as heartbeats.

    A disconnect cancels the turn, unless it runs in the background or the client only follows it.
    """

    def __init__(
        self,
        turn: Turn | LogReplay,
        limits: GatewayLimits,
        event_encoder: EventEncoder | None = None,
        *,
        write: Callable[[Json], bytes] | None = None,
        last: bytes = b"",
    ) -> None:
        self._turn = turn
        self._limits = limits
        self._event_encoder = event_encoder or ResponseEventEncoder.of(turn.accepted, None)
        self._write = write or sse
        self._last = last
        self._is_read = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events up to the terminal one."""
        session_id = self._turn.accepted.session_id
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            (b"x-session-id", session_id.encode()),
        ]
        echoed = session_header(scope)
        headers = [*headers[:-1], *echoed] if echoed else headers
        of_turn = self._turn.headers
        headers += [(name.encode(), value.encode()) for name, value in of_turn.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send_events(send))
            watch = tasks.create_task(
                watch_disconnect(receive, lambda: self._on_disconnect(sending))
            )
            await asyncio.wait({sending})
            watch.cancel()

    def _on_disconnect(self, sending: "asyncio.Task[None]") -> None:
        if isinstance(self._turn, LogReplay) or self._turn.accepted.request.background:
            sending.cancel()
        else:
            _cancel(self._turn)  # its remaining entries are read to the end

    async def _send_events(self, send: Send) -> None:
        await self._send(send, b"".join(map(self._write, self._event_encoder.opening_events())))
        try:
            await self._send_entries(send)
        except EntriesLostError:
            await self._send(send, self._write(error_event(too_slow(), None)))
        if self._is_read:
            await send({"type": "http.response.body", "body": self._last, "more_body": False})

    async def _send_entries(self, send: Send) -> None:
        event_encoder, write = self._event_encoder, self._write
        async with aclosing(
            with_silence(self._turn.entries(), self._limits.heartbeat_s)
        ) as entries:
            async for entry in entries:
                chunk = (
                    HEARTBEAT
                    if entry is None
                    else b"".join(map(write, event_encoder.encode(entry)))
                )
                # a client that stops reading is cancelled once; the rest is read to the end
                if chunk and self._is_read:
                    await self._send(send, chunk)

    async def _send(self, send: Send, chunk: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.send_timeout_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            self._is_read = False
            _cancel(self._turn)


def data_only(event: Json) -> bytes:
    """Encode one event without a type."""
    return b"data: %b\n\n" % msgspec.json.encode(event)


def sse(event: Json) -> bytes:
    """Encode one server-sent event (WHATWG HTML, section 9.2)."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


async def with_silence(
    entries: AsyncIterator[TurnLogEntry], every_s: float
) -> AsyncGenerator[TurnLogEntry | None, None]:
    """Yield log entries, and None after each `every_s` without one."""
    while True:
        following = asyncio.ensure_future(anext(entries, None))
        try:
            while not (await asyncio.wait({following}, timeout=every_s))[0]:
                yield None
        finally:
            following.cancel()
        entry = following.result()
        if entry is None:
            return
        yield entry


def _retry_after_s(code: ErrorCode, drain_rate: DrainRate) -> int | None:
    match code:
        case "queue_full" | "queue_timeout":
            return drain_rate.retry_after_s()
        case "engine_restarted":
            return _RESTART_S
        case _:
            return None
