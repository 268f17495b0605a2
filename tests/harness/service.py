"""A session service on a migrated database and a fake engine, and short words for its use."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from engine.ipc.client import EngineClient
from sessiond.domain import (
    AttachmentId,
    Caller,
    InputItem,
    PolicyChoice,
    TurnFinished,
    TurnLogEntry,
    TurnRequest,
)
from sessiond.sessions.hooks import Hooks
from sessiond.sessions.layer import SessionLayer
from sessiond.sessions.limits import ServiceLimits
from sessiond.sessions.turn import Turn
from sessiond.store.database import CONNECTIONS
from sessiond.store.store import Store
from tests.databases import PATIENCE_S
from tests.fakes.fake_clock import FakeClock
from tests.fakes.policies import Shelf

ANN = Caller(user_id="ann", is_admin=False, salt=b"ann")
BOB = Caller(user_id="bob", is_admin=False, salt=b"bob")
SOCKET = AttachmentId("sock_1")

END, NEWLINE = 256, 10
ROLES = {"system": 257, "user": 258, "assistant": 259, "developer": 260}
DEFAULT = "be good"


class ByteFormat:
    """A chat template on bytes: `<role>text<end>\\n`, a default system prompt."""

    generation_prompt = (ROLES["assistant"],)
    close_ids = (END, NEWLINE)
    stop_ids = (END,)
    user_start = (ROLES["user"],)

    def open(self, system: str | None) -> list[int]:
        return self.message("system", DEFAULT if system is None else system)

    def message(self, role: str, text: str) -> list[int]:
        return [ROLES[role], *text.encode(), *self.close_ids]


def message(role: str, text: str) -> list[int]:
    return ByteFormat().message(role, text)


def rendered(*parts: tuple[str, str]) -> list[int]:
    """The ids of whole messages in a row."""
    return [token for role, text in parts for token in message(role, text)]


def items(*texts: str | tuple[str, str]) -> tuple[InputItem, ...]:
    pairs = [("user", text) if isinstance(text, str) else text for text in texts]
    return tuple(InputItem(role=role, text=text) for role, text in pairs)


def ask(*texts: str | tuple[str, str], **fields: Any) -> TurnRequest:
    return TurnRequest(input=items(*texts), **fields)


_NOBODY = Hooks()


class World:
    """One server's life: `World.start`, then `stop`; another may start on the same database."""

    def __init__(
        self,
        url: str,
        engine: EngineClient,
        ids: Any,
        *,
        policy: PolicyChoice | None = None,
        clock: FakeClock | None = None,
        ticks: FakeClock | None = None,
        replica: str = "",
        connections: int = CONNECTIONS,
        hooks: Hooks = _NOBODY,
        **limits: Any,
    ) -> None:
        self.engine = engine
        self.policies = Shelf()
        self.clock = clock or FakeClock(tick_s=0.001)
        self.ticks = ticks or self.clock
        self.store = Store(url, replica_name=replica, connections=connections, timeout_s=PATIENCE_S)
        self.limits = ServiceLimits(**{"engine_ready_timeout_s": 5.0, **limits})
        self.service = SessionLayer(
            store=self.store,
            engine=engine,
            text=ByteFormat(),
            limits=self.limits,
            clock=self.clock,
            ticks=ticks,
            new_id=lambda prefix: f"{prefix}_{next(ids)}",
            new_seed=lambda: next(ids),
            hooks=hooks,
            default_policy=policy or PolicyChoice(type="none"),
            make_policy=self.policies,
        )

    @classmethod
    async def start(cls, url: str, engine: EngineClient, ids: Any = None, **limits: Any) -> "World":
        world = cls(url, engine, ids or count(1), **limits)
        await world.service.start()
        world.service.housekeeping.attach(SOCKET)
        return world

    async def stop(self) -> None:
        await self.service.stop()
        await self.store.close()

    async def bind(
        self,
        request: TurnRequest,
        *,
        caller: Caller = ANN,
        attachment: AttachmentId | None = SOCKET,
        lane: str | None = None,
    ) -> Turn:
        return await self.service.turns.bind(caller, request, attachment=attachment, lane=lane)

    async def begin(self, request: TurnRequest, **where: Any) -> Turn:
        return await self.service.turns.run(await self.bind(request, **where))

    async def turn(self, request: TurnRequest, **where: Any) -> tuple[Turn, TurnFinished]:
        turn = await self.begin(request, **where)
        return turn, await finish(turn)

    async def context(self, session_id: str, caller: Caller = ANN) -> list[int]:
        """What SQL says the session's context is."""
        record = await self.store.find_session(caller.user_id, session_id)
        assert record is not None
        ids = await self.store.context_ids(caller.user_id, record.prompt.id, record.tip_id)
        assert len(ids) == record.context_tokens
        return ids


def timers(service: SessionLayer) -> list[Any]:
    """The tasks by which a server lives: the reaper, the heartbeat."""
    # No service gives its tasks away; one that is killed has none, and tells nobody.
    return [service.housekeeping._reaper, service.replica._task]  # noqa: SLF001


async def entries(turn: Turn) -> list[TurnLogEntry]:
    return [entry async for entry in turn.entries()]


async def finish(turn: Turn) -> TurnFinished:
    last = (await entries(turn))[-1]
    assert isinstance(last, TurnFinished)
    return last


async def until(condition: Callable[[], object]) -> None:
    """Wait, a few loop turns at a time, for what other tasks bring about."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- what is awaited has no event of its own
            await asyncio.sleep(0.001)


async def settled(*work: Awaitable[Any]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*work, return_exceptions=True)
