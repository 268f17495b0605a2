"""A run: clients and faults from one seed, then what must hold afterwards."""

import asyncio
import logging
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from engine.ipc.queries import AuditReport, EngineStats, GetAudit, GetStats
from sessiond.api.auth import LOCAL
from tests.chaos.client import Client, Ledger
from tests.chaos.faults import Fault, when_possible
from tests.chaos.guest import Guest
from tests.chaos.reader import Reader
from tests.chaos.stack import ChaosStack, chaos_stack
from tests.chaos.wire import Wire

log = logging.getLogger(__name__)

RECOVERS_WITHIN_S = 120.0
_TOGETHER = 0.2  # of the faults: another comes at the same time
_WARM_UP = 12
_SPARE_DESCRIPTORS = 8  # pools of connections grow to their size


@dataclass(slots=True)
class Fate:
    """What became of one kind of fault. A fault is survived when turns complete again after it."""

    injected: int = 0
    survived: int = 0
    slowest_s: float = 0.0


@dataclass(slots=True)
class Report:
    """What a run did and met."""

    seed: int
    seconds: float = 0.0
    fates: dict[str, Fate] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    restarts: int = 0
    hangs: int = 0

    @property
    def injected(self) -> int:
        return sum(fate.injected for fate in self.fates.values())

    @property
    def survived(self) -> int:
        return sum(fate.survived for fate in self.fates.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`operations` of `clients`, a guest and a reader; faults of all kinds come in turn."""

    seed: int
    operations: int
    faults: dict[str, Fault]
    clients: int = 4
    operations_per_fault: int = 5
    step_timeout_s: float = 5.0


class Run:
    """One run on a database that is migrated and empty."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._done = 0
        self._report = Report(seed=plan.seed)
        self._begun = asyncio.Event()

    async def go(self, url: str, folder: Path) -> Report:
        started_s = time.monotonic()
        async with chaos_stack(url, folder, self._plan.step_timeout_s) as stack:
            start = await self._warm_up(stack)
            clients: list[Client | Guest | Reader] = [
                *(self._client(stack) for _ in range(self._plan.clients)),
                self._guest(stack),
                self._reader(stack),
            ]
            load = asyncio.gather(*map(self._drive, clients))
            faults = asyncio.create_task(self._inject(stack, load))
            try:
                await load
                await faults
            finally:
                load.cancel()
                faults.cancel()
                stack.orders.clear()
            await asyncio.gather(*(client.leave() for client in clients))
            await self._check(stack, start)
            self._report.restarts, self._report.hangs = stack.engine.restarts, stack.engine.hangs
        self._report.seconds = time.monotonic() - started_s
        return self._report

    def _client(self, stack: ChaosStack) -> Client:
        wires = Wire(stack.served), Wire(stack.served)
        chance = random.Random(self._chance.random())
        return Client(*wires, chance, self._report.ledger)

    def _guest(self, stack: ChaosStack) -> Guest:
        chance = random.Random(self._chance.random())
        return Guest(Wire(stack.served), chance, self._report.ledger)

    def _reader(self, stack: ChaosStack) -> Reader:
        chance = random.Random(f"reader {self._plan.seed}")  # the others draw as without one
        return Reader(stack, chance, self._report.ledger)

    async def _drive(self, client: Client | Guest | Reader) -> None:
        while self._done < self._plan.operations:
            self._done += 1
            await client.operate()

    # --- faults --------------------------------------------------------------------------------

    async def _inject(self, stack: ChaosStack, load: "asyncio.Future[list[None]]") -> None:
        """Every kind in turn, in an order that the seed gives; each is survived before the next."""
        kinds: list[str] = []
        if not self._plan.faults:
            return
        due = self._plan.operations_per_fault
        while True:
            while self._done < due:
                if load.done() or self._done >= self._plan.operations:
                    return
                await asyncio.sleep(0.005)
            now = []
            for _ in range(1 + (self._chance.random() < _TOGETHER)):
                kinds = kinds or self._chance.sample(
                    sorted(self._plan.faults), len(self._plan.faults)
                )
                now.append(kinds.pop())
            await asyncio.gather(*(self._meet(stack, kind, load) for kind in dict.fromkeys(now)))
            due = self._done + self._plan.operations_per_fault

    async def _meet(self, stack: ChaosStack, kind: str, load: "asyncio.Future[list[None]]") -> None:
        fate = self._report.fates.setdefault(kind, Fate())
        log.info("fault: %s", kind)
        over = asyncio.ensure_future(
            when_possible(self._plan.faults[kind], stack, random.Random(self._chance.random()))
        )
        await asyncio.wait([over, load], return_when=asyncio.FIRST_COMPLETED)
        if not over.done():  # the load has ended, and nobody meets it any more
            over.cancel()
            return
        over.result()
        fate.injected += 1
        completed, since_s = self._report.ledger.completed, time.monotonic()
        while self._report.ledger.completed == completed:
            if load.done():
                break  # the last turns have completed, or the load has failed
            assert time.monotonic() - since_s < RECOVERS_WITHIN_S, f"no turn completes after {kind}"
            await asyncio.sleep(0.005)
        fate.survived += 1
        fate.slowest_s = max(fate.slowest_s, time.monotonic() - since_s)

    # --- what must hold ------------------------------------------------------------------------

    async def _warm_up(self, stack: ChaosStack) -> "Start":
        """Some turns without faults, so that what is opened once is open."""
        for client in (self._client(stack), self._guest(stack)):
            for _ in range(_WARM_UP):
                await client.operate()
            await client.leave()
        await _idle(stack)
        return Start(tasks=len(asyncio.all_tasks()), descriptors=_descriptors())

    async def _check(self, stack: ChaosStack, start: "Start") -> None:
        await stack.engine.ready()
        await _idle(stack)
        for response_id, said in self._report.ledger.acknowledged.items():
            turn = await stack.store.find_turn("local", response_id)
            assert turn is not None, f"{response_id} was acknowledged, and is not stored"
            assert turn.is_checkpoint, turn
            stored = await stack.served.service.inspector.response(LOCAL, response_id)
            assert stored.finished is not None, stored
            assert stored.finished.text == said.reply, (stored, said)
        async with asyncio.timeout(90):  # a heartbeat ends those that the database did not take
            while await _running_turns(stack):  # noqa: ASYNC110 -- no event of its own
                await asyncio.sleep(0.05)
        account = await stack.store.quotas.account("local")
        assert account.use.turns == 0, account
        await _forget_all(stack)
        await _until(lambda: len(asyncio.all_tasks()) <= start.tasks + 1, "tasks are left")
        spare = start.descriptors + _SPARE_DESCRIPTORS
        await _until(lambda: _descriptors() <= spare, "descriptors are left")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the process held before the first fault."""

    tasks: int
    descriptors: int


async def _running_turns(stack: ChaosStack) -> int:
    running = sa.text("SELECT count(*) FROM turns WHERE status = 'running'")
    return await stack.store.database.read(lambda connection: connection.scalar(running))


async def _idle(stack: ChaosStack) -> None:
    """Nobody is there: no block is held, the auditor finds nothing, the sums are right."""
    async with asyncio.timeout(90):
        while True:
            stats = await stack.engine.ask(GetStats())
            assert isinstance(stats, EngineStats)
            if not (stats.active_blocks or stats.running or stats.waiting):
                break
            await asyncio.sleep(0.02)
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    audit = await stack.engine.ask(GetAudit())
    assert isinstance(audit, AuditReport)
    assert audit.violations == []


async def _forget_all(stack: ChaosStack) -> None:
    """Close every conversation: then the engine knows of none, as before the first."""
    wire = Wire(stack.served)
    while sessions := (await wire.ask("GET", "/v1/sessions")).json()["data"]:
        for session in sessions:
            answer = await wire.ask("DELETE", f"/v1/sessions/{session['id']}")
            assert answer.status_code in (200, 404), answer.text
    stats = await stack.engine.ask(GetStats())
    assert isinstance(stats, EngineStats)
    assert stats.contexts == 0, stats
    await _idle(stack)


async def _until(condition, words: str) -> None:
    try:
        async with asyncio.timeout(90):
            while not condition():  # noqa: ASYNC110 -- no event of its own
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{words}: {_descriptors()}, {asyncio.all_tasks()}") from None


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- a count of numbers
