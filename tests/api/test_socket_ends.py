"""How a socket ends: all of its tasks at once, and by the first word."""

import asyncio

import pytest

from sessiond.api import socket
from sessiond.api.jobs import TurnJob
from sessiond.domain import TurnBegun
from tests.api.frames import closed, create, hear, say
from tests.api.scripted import ScriptedService, reply
from tests.harness.serving import gateway_of, serving


class Gate(asyncio.Event):
    """Notes that who waited for it was cancelled."""

    def __init__(self):
        super().__init__()
        self.cut = asyncio.Event()

    async def wait(self):
        try:
            return await super().wait()
        except asyncio.CancelledError:
            self.cut.set()
            raise


@pytest.fixture
def admissions(monkeypatch):
    """Those of the sockets that come, in their order."""
    found = []
    admit = socket.admission_of

    def admission_of(scope):
        found.append(admit(scope))
        return found[-1]

    monkeypatch.setattr(socket, "admission_of", admission_of)
    return found


async def test_turns_are_cut_while_the_reader_waits_for_a_transaction(admissions):
    gate, database, asked = Gate(), asyncio.Event(), asyncio.Event()
    service = ScriptedService(lambda _: [TurnBegun(), gate, *reply("x")[1:]])

    async def close_session(*_):
        asked.set()
        try:
            await database.wait()
        except asyncio.CancelledError:
            await database.wait()  # as a transaction is: never cut in half
            raise

    service.close = close_session
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        await create(ws, input="a")
        await hear(ws)
        await say(ws, type="session.close", session="conv_9")
        await asyncio.wait_for(asked.wait(), 60)
        admissions[0].revoked.set()
        await asyncio.wait_for(gate.cut.wait(), 60)
        database.set()
        assert await closed(ws) == 1008


async def test_a_fault_in_the_end_does_not_change_what_the_peer_is_told(
    admissions, monkeypatch, caplog
):
    runs = asyncio.Event()

    async def run(_):
        runs.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("in its end") from None

    monkeypatch.setattr(TurnJob, "run", run)
    service = ScriptedService(lambda _: reply("x"))
    async with serving(gateway_of(service)) as served, served.connect() as ws:
        await create(ws, input="a")
        await asyncio.wait_for(runs.wait(), 60)
        admissions[0].revoked.set()
        assert await closed(ws) == 1008
    assert "an internal error ended a socket" in caplog.text
