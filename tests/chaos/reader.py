"""One client that is there and reads nothing: for a while, never again, or as long as all is still.

Each operation returns whether its check was whole; False: a fault of the moment had come between.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Callable

import httpx
from websockets.frames import Opcode
from websockets.protocol import State

from sessiond.api.websocket_protocol import GatewayWebSocketProtocol
from tests.chaos.client import FAULTS, RUNNING, Ledger
from tests.chaos.engine import HELD
from tests.chaos.guest import body_of, close, text_of
from tests.chaos.stack import HEARTBEAT_S, ChaosStack
from tests.chaos.talk import Asked, Talk
from tests.chaos.wire import PATIENCE_S, Heard, Wire
from tests.sockets.raw_peer import RawPeer, frame, make_small, raw_peer

_LANE = "reader"
_WRONG = frame(Opcode.TEXT, json.dumps({"type": "response.create", "x" * 100: 1}).encode())
_WRONGS = 90  # fewer than a lane and the queue behind it hold, more than a small socket takes
_LONG = 100  # tokens of a reply: more than the queue holds
_LOOKS = 40  # a heartbeat apart: so long no silence lasts, however slow the machine is


class Reader:
    """Each operation has sockets and sessions of its own, which are closed behind it."""

    def __init__(self, stack: ChaosStack, chance: random.Random, ledger: Ledger) -> None:
        self._stack = stack
        self._served = stack.served
        self._limits = stack.served.gateway.limits
        self._wire = Wire(stack.served)
        self._chance = chance
        self._ledger = ledger

    async def operate(self) -> None:
        operation = self._chance.choice([self.read_slowly, self.vanish, self.wait_in_silence])
        is_whole = await operation()
        self._ledger.did(operation.__name__ if is_whole else f"{operation.__name__}, broken off")

    async def leave(self) -> None:
        await self._wire.close()

    # --- operations ----------------------------------------------------------------------------

    async def read_slowly(self) -> bool:
        """T42: what could not be sent in time is told in fewer words, and all of it."""
        asked, session_id = self._long_turn(), await self._open_session()
        since_s = time.monotonic()
        async with self._peer() as peer:
            connection = self._connection_of(peer)
            make_small(connection)
            peer.writer.transport.pause_reading()
            peer.send(*[_WRONG] * _WRONGS)
            await _until(lambda: _is_closed(connection) or not connection.writable.is_set())
            peer.send(_create(asked, session_id))
            is_whole = await self._ends(session_id, lambda: _is_closed(connection))
            peer.writer.transport.resume_reading()
            heard, wrongs = await _hear(peer)
        await close(self._wire, session_id)
        self._ledger.count(heard)
        if heard.end is None:
            patience_s = min(self._limits.send_timeout_s, self._limits.ping_timeout_s)
            assert time.monotonic() - since_s > patience_s, "closed, and it was not late"
            return False
        assert wrongs == _WRONGS, f"{wrongs} errors of {_WRONGS} were told"
        if not _is_right(asked, heard):
            return False
        deltas = heard.events.count("response.output_text.delta")
        assert deltas < _LONG or not is_whole, f"{deltas} words for {_LONG} tokens"
        return is_whole

    async def vanish(self) -> bool:
        """T07: who answers no pings is let go of in time, amid a turn or behind it."""
        asked = self._long_turn()
        sessions = [await self._open_session() for _ in range(self._chance.randint(1, 3))]
        async with contextlib.AsyncExitStack() as peers:
            gone = set()
            for session_id in sessions:
                peer = await peers.enter_async_context(self._peer())
                gone.add(self._connection_of(peer))
                peer.writer.transport.pause_reading()
                peer.send(_create(asked, session_id))
            await _until(lambda: not gone & self._served.server.server_state.connections)
            for session_id in sessions:
                await self._check_released(session_id, asked)
                await close(self._wire, session_id)
        return True

    async def wait_in_silence(self) -> bool:
        """T43, T47: while a step is held, streams and sockets are not silent, and probes pass."""
        asked = self._long_turn()
        body = {**body_of(asked), "stream": True, "store": False}
        async with self._wire.http() as http, contextlib.AsyncExitStack() as held:
            request = http.build_request("POST", "/v1/responses", json=body)
            try:
                await held.enter_async_context(self._held_steps())
                answer = await http.send(request, stream=True)
            except (OSError, httpx.TransportError):
                return False
            async with contextlib.aclosing(answer):
                if answer.status_code != 200:
                    assert answer.status_code in (429, 500, 503), answer
                    return False
                stream = _Stream(answer)
                is_whole = await stream.is_commented()
                if is_whole:
                    await self._check_probe_and_pings()
                await held.aclose()
                heard = await stream.heard()
        self._ledger.count(heard)
        return _is_right(asked, heard) and is_whole

    # --- their parts ---------------------------------------------------------------------------

    def _long_turn(self) -> Asked:
        return self._chance.choice(_long_turns())

    async def _open_session(self) -> str:
        answer = await self._wire.ask("POST", "/v1/conversations", {})
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    @contextlib.asynccontextmanager
    async def _peer(self) -> AsyncIterator[RawPeer]:
        """A socket whose kernel takes little, as soon as one can be had."""
        async with contextlib.AsyncExitStack() as opened:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        one = raw_peer(self._served.ws_url, receive_buffer=4096)
                        peer = await opened.enter_async_context(one)
                        break
                    except OSError:
                        await asyncio.sleep(0.02)
            yield peer

    def _connection_of(self, peer: RawPeer) -> GatewayWebSocketProtocol:
        """The server's end of it."""
        name = peer.writer.get_extra_info("sockname")
        (connection,) = [
            one
            for one in self._served.server.server_state.connections
            if one.transport.get_extra_info("peername") == name
        ]
        return connection

    @contextlib.asynccontextmanager
    async def _held_steps(self) -> AsyncIterator[None]:
        """No step of the engine goes on until the block ends."""
        self._stack.orders.give(HELD)
        try:
            yield
        finally:
            while True:
                with contextlib.suppress(OSError):  # there is no descriptor to look with
                    self._stack.orders.take(HELD)
                    break
                await asyncio.sleep(0.02)

    async def _ends(self, session_id: str, in_vain: Callable[[], bool]) -> bool:
        """Whether the session's only turn begins and ends before it is in vain to wait."""
        while not in_vain():
            view = await self._view(session_id)
            if view["turns"] and view["state"] not in RUNNING:
                return True
            await asyncio.sleep(0.02)
        return False

    async def _view(self, session_id: str) -> dict:
        answer = await self._wire.ask("GET", f"/v1/sessions/{session_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def _check_released(self, session_id: str, asked: Asked) -> None:
        """Nothing of it is held; its turn is there as a whole, or not at all."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                view = await self._view(session_id)
                if view["state"] not in RUNNING and not view["blocks"]["device"]:
                    break
                await asyncio.sleep(0.02)
        for turn in view["turns"]:
            if turn["kept"] and turn["role"] == "user":
                told = await self._wire.ask("GET", f"/v1/responses/{turn['response_id']}")
                right = Talk(session_id="").right_reply(asked)
                assert text_of(told.json()) == right, (told.text, right)

    async def _check_probe_and_pings(self) -> None:
        answer = await self._wire.ask("GET", "/health/live")
        assert answer.status_code == 200, answer.text
        async with self._peer() as peer:
            while (found := await peer.next()) is not None:
                if found.opcode is Opcode.PING:
                    return
            raise AssertionError("a socket is closed while a step is held")


class _Stream:
    """What comes of a stream over HTTP."""

    def __init__(self, answer: httpx.Response) -> None:
        self._told = b""
        self._taking = asyncio.create_task(self._take(answer))

    async def is_commented(self) -> bool:
        """Whether its silence is broken, twice; False: it has ended before."""
        for _ in range(_LOOKS):
            if sum(line.startswith(b":") for line in self._told.split(b"\n")) >= 2:
                return True
            if self._taking.done():
                return False
            await asyncio.sleep(HEARTBEAT_S)
        self._taking.cancel()
        raise AssertionError(f"a stream is silent: {self._told!r}")

    async def heard(self) -> Heard:
        """Read to its end."""
        await self._taking
        heard = Heard()
        for line in self._told.split(b"\n"):
            if line.startswith(b"data: "):
                heard.take(json.loads(line.removeprefix(b"data: ")))
        return heard

    async def _take(self, answer: httpx.Response) -> None:
        async for chunk in answer.aiter_bytes():
            self._told += chunk


@functools.cache
def _long_turns() -> tuple[Asked, ...]:
    """Some turns whose replies a calm engine ends for their length only."""
    turns = (
        Asked(user=f"tell me all about number {number}", max_output_tokens=_LONG)
        for number in itertools.count()
    )
    talk = Talk(session_id="")
    return tuple(itertools.islice((t for t in turns if len(talk.right_reply(t)) == _LONG), 4))


def _create(asked: Asked, session_id: str) -> bytes:
    pairs = {"type": "response.create", "stream_id": _LANE, "conversation": session_id}
    return frame(Opcode.TEXT, json.dumps({**body_of(asked), **pairs}).encode())


async def _hear(peer: RawPeer) -> tuple[Heard, int]:
    """What became of the turn in the lane, and how many errors were told beside it."""
    heard, wrongs = Heard(), 0
    while heard.end is None or wrongs < _WRONGS:
        found = await peer.next()
        if found is None or found.opcode is Opcode.CLOSE:
            break
        if found.opcode is Opcode.TEXT:
            event = json.loads(found.data)
            if event.get("stream_id") == _LANE:
                heard.take(event)
            else:
                assert (event["type"], event["status"]) == ("error", 400), event
                wrongs += 1
    return heard, wrongs


def _is_right(asked: Asked, heard: Heard) -> bool:
    """Whether it is a whole reply, the right one; False: what faults and pressure may leave."""
    right = Talk(session_id="").right_reply(asked)
    if heard.outcome == "max_output_tokens":
        assert heard.text == right, (heard, right)
        return True
    assert heard.outcome in FAULTS | {"memory_pressure"}, heard
    assert right.startswith(heard.text), (heard, right)
    return False


def _is_closed(connection: GatewayWebSocketProtocol) -> bool:
    return connection.conn.state is not State.OPEN


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- uvicorn tells nobody
            await asyncio.sleep(0.01)
