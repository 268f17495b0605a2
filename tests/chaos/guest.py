"""One client that keeps no conversation: what it asks for is too much, cut short, or no request."""

import asyncio
import json
import random

from websockets.exceptions import ConnectionClosed

from tests.chaos.client import FAULTS, Ledger
from tests.chaos.engine import POOL_TOKENS
from tests.chaos.talk import INSTRUCTIONS, Asked, Said, Talk
from tests.chaos.wire import PATIENCE_S, Heard, Wire

_JUNK = (
    '{"type": "response.create", "input": "\\ud800"}',
    '{"type": "response.create", "input": ',
    '{"type": "response.create", "input": "hi", "max_output_tokens": -1}',
    '{"type": "no.such.event"}',
)
_SPELLINGS = ("X-Session-Id", "x_session_id", "X-SESSION-ID", "X_Session-ID")


class Guest:
    """Each operation opens a session of its own, which is closed behind it."""

    def __init__(self, wire: Wire, chance: random.Random, ledger: Ledger) -> None:
        self._wire = wire
        self._chance = chance
        self._ledger = ledger

    async def operate(self) -> None:
        operation = self._chance.choice(
            [self.ask_for_too_much, self.name_the_session, self.cut_a_request, self.babble]
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

    async def name_the_session(self) -> None:
        """T58: a name comes back however its header is spelt, and the reply says what it reused."""
        talk, sessions = Talk(session_id=""), set()
        while len(talk.said) < 2:
            asked = Asked(user=self._words(), max_output_tokens=24)
            # what was asked for again may have been done before: then the second turn is a fork
            tip = {"previous_response_id": talk.tip_id} if talk.said else {}
            name = f"guest-{len(talk.said)}"
            headers = {self._chance.choice(_SPELLINGS): name}
            body = {**body_of(asked), **tip}
            answer = await self._wire.ask("POST", "/v1/responses", body, headers)
            assert answer.status_code == 200, answer.text
            assert answer.headers.get_list("x-session-id") == [name], answer.headers
            check_told(talk, asked, answer.json())
            sessions.add(answer.json()["conversation"]["id"])
        for session_id in sessions:
            await close(self._wire, session_id)

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

    async def _whole_turn(self) -> None:
        user = self._words()
        heard = await self._hear(user)
        if heard.outcome in {"completed", "max_output_tokens"}:
            right = Talk(session_id="").right_reply(Asked(user=user, max_output_tokens=24))
            assert heard.text == right, (heard, right)
        else:
            assert heard.outcome in FAULTS, heard

    async def _hear(self, user: str) -> Heard:
        frame = {"stream_id": "guest", **body_of(Asked(user=user, max_output_tokens=24))}
        (heard,) = (await self._wire.exchange([frame])).values()
        self._ledger.count(heard)
        if heard.session_id is not None:
            await close(self._wire, heard.session_id)
        return heard

    def _words(self) -> str:
        return "say " * self._chance.randint(1, 20)


def check_told(talk: Talk, asked: Asked, told: dict) -> None:
    """A response over HTTP is the right one, says what it reused, and is added to the talk."""
    text = text_of(told)
    right = talk.right_reply(asked)
    reason = (told["incomplete_details"] or {}).get("reason")
    if reason == "memory_pressure":
        assert right.startswith(text), (told, right)
    else:
        assert reason in (None, "max_output_tokens"), told
        assert text == right, (told, right)
    usage, ours = told["usage"], told["sessiond"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert cached == ours["reused_tokens"] + ours["restored_tokens"], told
    assert usage["input_tokens"] == len(talk.prompt(asked.user)), told
    assert cached + ours["recomputed_tokens"] <= usage["input_tokens"], told
    talk.said.append(Said(response_id=told["id"], user=asked.user, reply=text))


def text_of(told: dict) -> str:
    """The text of a response; one that ended at once has no output."""
    return told["output"][0]["content"][0]["text"] if told["output"] else ""


def body_of(asked: Asked) -> dict:
    """A turn that opens a session of its own."""
    return {
        "input": asked.user,
        "max_output_tokens": asked.max_output_tokens,
        "temperature": 0,
        "instructions": INSTRUCTIONS,
        "context_management": [{"type": "none"}],
    }


async def close(wire: Wire, session_id: str) -> None:
    answer = await wire.ask("DELETE", f"/v1/sessions/{session_id}")
    assert answer.status_code in (200, 404), answer.text
