"""One conversation of a load: asyncio, one socket, no retries: what is lost is counted."""

import json
import time
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from sessiond.cli.chat_turn import ChatTurn, ProtocolFaultError
from sessiond.cli.server_api import ServerAddress


class LoadClient:
    """Sends turns over its own socket. `fields` go into every `response.create`."""

    def __init__(self, url: str, **fields: Any) -> None:
        self._connecting = connect(
            ServerAddress.parse(url).socket, compression=None, proxy=None, max_size=2**24
        )
        self._fields = fields
        self._socket: ClientConnection | None = None
        self.tip: str | None = None

    async def __aenter__(self) -> Self:
        """Open the socket."""
        self._socket = await self._connecting.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the socket."""
        await self._connecting.__aexit__(kind, error, trace)

    @property
    def socket(self) -> ClientConnection:
        """The open socket."""
        if self._socket is None:
            raise RuntimeError("use `async with`")
        return self._socket

    async def send(self, text: str, **fields: Any) -> ChatTurn:
        """Send one turn, without waiting for anything."""
        request = {"type": "response.create", "input": text} | self._fields | fields
        if self.tip is not None:
            request["previous_response_id"] = self.tip
        await self.socket.send(json.dumps(request))
        return ChatTurn(sent_at_s=time.perf_counter())

    async def finish(self, turn: ChatTurn) -> ChatTurn:
        """Read until the turn has ended; a lost or unreadable connection ends it as `cut`."""
        while turn.end is None:
            try:
                turn.feed(await self.socket.recv(), at_s=time.perf_counter())
            except ConnectionClosed as closed:
                turn.cut(f"closed ({closed.rcvd.code if closed.rcvd else 1006})")
            except ProtocolFaultError as fault:
                turn.cut(str(fault))
                await self.socket.close()
        self.tip = turn.end.tip or self.tip
        return turn

    async def ask(self, text: str, **fields: Any) -> ChatTurn:
        """Run one turn."""
        return await self.finish(await self.send(text, **fields))
