"""One client that keeps no conversation: what it asks for is too much, cut short, or no request."""

import asyncio
import json
import random

from websockets.exceptions import ConnectionClosed

from tests.chaos.client import FAULTS, Ledger
from tests.chaos.engine import POOL_TOKENS
from tests.chaos.talk import INSTRUCTIONS, Asked, Talk
from tests.chaos.wire import PATIENCE_S, Heard, Wire

_JUNK = (
    '{"type": "response.create", "input": "\\ud800"}',
    '{"type": "response.create", "input": ',
    '{"type": "response.create", "input": "hi", "max_output_tokens": -1}',
    '{"type": "no.such.event"}',
)


class Guest:
    """Each operation opens a session of its own, which is closed behind it."""

    def __init__(self, wire: Wire, chance: random.Random, ledger: Ledger) -> None:
        self._wire = wire
        self._chance = chance
        self._ledger = ledger

    async def operate(self) -> None:
        operation = self._chance.choice(
            [self.ask_for_too_much, self.read_slowly, self.cut_a_request, self.babble]
        )
        await operation()
        self._ledger.did(operation.__name__)

    async def leave(self) -> None:
        await self._wire.close()

    async def ask_for_too_much(self) -> None:
        """T29: what the model would take and the pool can't is refused at once; the next runs."""
        heard = await self._hear("x" * POOL_TOKENS)
        if heard.outcome == "request_too_large":
            assert heard.events == ["error"], heard
        else:
            assert heard.outcome in FAULTS, heard
        assert not heard.text, heard
        await self._whole_turn()

    async def read_slowly(self) -> None:
        """T42: what could not be sent in time is told in fewer words, and all of it."""
        paused = False

        def pause(_heard: dict[str, Heard], event: dict) -> str | None:
            nonlocal paused
            if paused or event["type"] != "response.output_text.delta":
                return None
            paused = True
            return "pause"

        await self._whole_turn(pause)

    async def cut_a_request(self) -> None:
        """T06: nobody waits for the rest of a stream over HTTP."""
        body = {"input": self._words(), "max_output_tokens": 100, "stream": True, "store": False}
        await self._wire.begin("/v1/responses", body)

    async def babble(self) -> None:
        """T45: what is no request is told so, and a request may follow on the same socket."""
        for junk in self._chance.sample(_JUNK, 2):
            async with asyncio.timeout(PATIENCE_S):
                socket = await self._wire.open()
                try:
                    await socket.send(junk)
                    event = json.loads(await socket.recv())
                except ConnectionClosed:
                    return
            assert (event["type"], event["status"]) == ("error", 400), event
        await self._whole_turn()

    # --- their parts ---------------------------------------------------------------------------

    async def _whole_turn(self, during=lambda _heard, _event: None) -> None:
        user = self._words()
        heard = await self._hear(user, during)
        if heard.outcome in {"completed", "max_output_tokens"}:
            right = Talk(session_id="").right_reply(Asked(user=user, max_output_tokens=24))
            assert heard.text == right, (heard, right)
        else:
            assert heard.outcome in FAULTS, heard

    async def _hear(self, user: str, during=lambda _heard, _event: None) -> Heard:
        frame = {
            "stream_id": "guest",
            "input": user,
            "max_output_tokens": 24,
            "temperature": 0,
            "instructions": INSTRUCTIONS,
            "context_management": [{"type": "none"}],
        }
        (heard,) = (await self._wire.exchange([frame], during)).values()
        self._ledger.count(heard)
        if heard.session_id is not None:
            answer = await self._wire.ask("DELETE", f"/v1/sessions/{heard.session_id}")
            assert answer.status_code in (200, 404), answer.text
        return heard

    def _words(self) -> str:
        return "say " * self._chance.randint(1, 20)
