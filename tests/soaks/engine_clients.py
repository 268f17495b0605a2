"""Sessions straight on an engine, which do and undo all that a gateway would: at random."""

import asyncio
import random
from itertools import count

from engine.ids import SessionId, TurnId
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    ForkContext,
    ParkContext,
    ReleaseContext,
    Sampling,
    SetContext,
    SubmitTurn,
    TruncateContext,
    TurnDelta,
)
from tests.fakes.fake_model import FakeText

_names = count(1)


class EngineClient:
    """Runs one session after the other."""

    def __init__(self, engine, seed):
        self._engine = engine
        self._random = random.Random(seed)
        self.turns = 0

    async def run(self, until):
        while self.turns < until:
            await self._session(until)

    async def _session(self, until):
        session, salt = f"s{next(_names)}", self._random.choice([b"ann", b"bob"])
        self._engine.send(SetContext(session=SessionId(session), salt=salt, ids=[], computed=0))
        left = [session]
        for _ in range(self._random.randint(1, 12)):
            if self.turns >= until:
                break
            await self._turn(session)
            if self._random.random() < 0.15:
                left.append(self._fork(session))
            if self._random.random() < 0.2:
                self._between(session)
        for each in left:
            self._engine.send(CloseContext(session=SessionId(each), erase=self._odds(0.3)))

    def _odds(self, share):
        return self._random.random() < share

    def _fork(self, session):
        child = f"s{next(_names)}"
        self._engine.send(
            ForkContext(session=SessionId(child), parent=SessionId(session), length=0)
        )
        return child

    def _between(self, session):
        kind = self._random.choice([ReleaseContext, ParkContext, TruncateContext])
        more = {"length": 0} if kind is TruncateContext else {}
        self._engine.send(kind(session=SessionId(session), **more))

    async def _turn(self, session):
        self.turns += 1
        ids = self._random.choices(range(97, 123), k=self._random.randint(1, 60))
        turn = TurnId(f"t{next(_names)}")
        events = self._engine.submit(
            SubmitTurn(
                turn=turn,
                session=SessionId(session),
                ids=ids,
                close_ids=[FakeText.STOP, FakeText.NEWLINE],
                stop_ids=[FakeText.STOP],
                sampling=Sampling(temperature=0),
                max_output_tokens=8,
            )
        )
        patience = self._random.randint(0, 4) if self._odds(0.35) else None
        if patience == 0:
            self._cut(turn, session)
        async for event in events:
            if patience and isinstance(event, TurnDelta):
                patience -= 1
                if patience == 0:
                    self._cut(turn, session)

    def _cut(self, turn, session):
        """A client cancels, or vanishes, whose KV is then given back."""
        reason = self._random.choice(["cancelled", "disconnected", "deadline"])
        keep = reason == "cancelled" and self._odds(0.5)
        self._engine.cancel(CancelTurn(turn=turn, keep=keep, reason=reason))
        if reason == "disconnected":
            self._engine.send(ReleaseContext(session=SessionId(session)))


async def talk(clients, until):
    """Let all of them run turns at once, so many in all."""
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(until // len(clients)))
