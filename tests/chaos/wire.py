"""One client's way to the server: a socket that is opened again when it is cut, and HTTP."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from tests.harness.serving import Served
from tests.harness.stack import MODEL

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
PATIENCE_S = 120.0
_PAUSE_S = 0.02
_AWAY = (OSError, TimeoutError, InvalidHandshake, InvalidMessage, ConnectionClosed)
_NO_CONTEXT = ssl.create_default_context()  # httpx reads files for one, of which there may be none


class CutError(Exception):
    """The socket went before the turns on it had ended."""


@dataclass(slots=True)
class Heard:
    """What was told of one turn. `end` None: the socket was cut before it."""

    response_id: str | None = None
    session_id: str | None = None
    text: str = ""
    end: dict | None = None
    events: list[str] = field(default_factory=list)

    def take(self, event: dict) -> None:
        assert self.end is None, f"{event} after {self.end}"
        self.events.append(event["type"])
        match event["type"]:
            case "response.created":
                self.response_id = event["response"]["id"]
                self.session_id = event["response"]["conversation"]["id"]
            case "response.output_text.delta":
                self.text += event["delta"]
            case kind if kind in TERMINAL:
                self.end = event

    @property
    def outcome(self) -> str:
        """`completed`, the reason why it is incomplete, an error's code, or `cut`."""
        match self.end:
            case None:
                return "cut"
            case {"type": "response.completed"}:
                return "completed"
            case {"type": "response.incomplete", "response": response}:
                return response["incomplete_details"]["reason"]
            case {"type": "response.failed", "response": response}:
                return response["error"]["code"]
            case {"error": error}:
                return error["code"]
        raise AssertionError(self.end)


class Wire:
    """Every method waits out what keeps the server from being reached."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._socket: ClientConnection | None = None

    async def exchange(
        self,
        frames: list[dict],
        during: "Callable[[dict[str, Heard], dict], dict | str | None]" = lambda _heard, _event: (
            None
        ),
    ) -> dict[str, Heard]:
        """Send `response.create` frames, each in a lane of its own, and hear all to their ends.

        `during` sees each event; what it returns is sent, and "cut" cuts the socket.
        """
        heard = {frame["stream_id"]: Heard() for frame in frames}
        async with asyncio.timeout(PATIENCE_S):
            socket = await self.open()
            try:
                for frame in frames:
                    create = {"type": "response.create", "model": MODEL, **frame}
                    await socket.send(json.dumps(create))
                while any(turn.end is None for turn in heard.values()):
                    event = json.loads(await socket.recv())
                    heard[event["stream_id"]].take(event)
                    answer = during(heard, event)
                    if answer == "cut":
                        socket.transport.abort()
                    elif answer is not None:
                        await socket.send(json.dumps(answer))
            except ConnectionClosed:
                self._socket = None
        return heard

    async def update(self, session_id: str, hints: dict) -> dict:
        """`session.update`, sent again until it is told that it holds."""
        frame = json.dumps({"type": "session.update", "session": session_id, **hints})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                socket = await self.open()
                with contextlib.suppress(ConnectionClosed):
                    await socket.send(frame)
                    event = json.loads(await socket.recv())
                    if event["type"] != "error":
                        return event
                    assert event["status"] == 500, event
                await asyncio.sleep(_PAUSE_S)

    async def ask(
        self, method: str, path: str, body: dict | None = None, headers: dict | None = None
    ) -> httpx.Response:
        """A request that is made again until something other than a fault of the moment comes."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await self._ask(method, path, body, headers)
                except (*_AWAY, httpx.TransportError):
                    answer = None
                if answer is not None and answer.status_code not in (409, 429, 500, 503):
                    return answer
                await asyncio.sleep(_PAUSE_S)

    async def begin(self, path: str, body: dict) -> None:
        """Post a request for a stream and go when the first of it has come."""
        with contextlib.suppress(*_AWAY, httpx.TransportError):
            async with (
                asyncio.timeout(PATIENCE_S),
                self.http() as http,
                http.stream("POST", path, json=body) as answer,
            ):
                async for _ in answer.aiter_bytes():
                    return

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.transport.abort()
            self._socket = None

    async def _ask(
        self, method: str, path: str, body: dict | None, headers: dict | None
    ) -> httpx.Response:
        async with self.http() as http:
            return await http.request(method, path, json=body, headers=headers)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._served.http_url, trust_env=False, timeout=PATIENCE_S, verify=_NO_CONTEXT
        )

    async def open(self) -> ClientConnection:
        """The socket: a new one if it was cut."""
        while self._socket is None or self._socket.close_code is not None:
            with contextlib.suppress(*_AWAY):
                self._socket = await self._served.connect(max_queue=None)
                break
            await asyncio.sleep(_PAUSE_S)
        return self._socket
