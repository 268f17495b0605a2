"""Audits between scrapes: now and then, never while a turn needs the engine."""

import asyncio

from msgspec import structs

from engine.ipc.queries import GetAudit
from sessiond.api.audit_watch import AuditWatch
from tests.api.scripted import AUDIT, STATS, ScriptedEngine

IDLE = structs.replace(STATS, running=0, waiting=0)


class Audited(ScriptedEngine):
    """Finds a leak; counts what it was asked."""

    def __init__(self, stats):
        super().__init__()
        self.stats = stats
        self.asked = []
        self.again = asyncio.Event()

    async def ask(self, query):
        self.asked.append(type(query))
        if len(self.asked) >= 4:
            self.again.set()
        answer = await super().ask(query)
        return structs.replace(AUDIT, leaked_blocks=3) if answer is AUDIT else answer


async def watched(engine):
    watch = AuditWatch(engine, every_s=0.001)
    watch.start()
    async with asyncio.timeout(60):
        await engine.again.wait()
    await watch.stop()
    return watch


async def test_an_idle_engine_is_audited_and_the_leak_is_kept_for_scrapes():
    engine = Audited(IDLE)
    watch = await watched(engine)
    assert GetAudit in engine.asked
    assert watch.leaked_blocks == 3


async def test_an_engine_with_turns_is_left_alone():
    for busy in ({"running": 1}, {"waiting": 1}):
        engine = Audited(structs.replace(IDLE, **busy))
        watch = await watched(engine)
        assert GetAudit not in engine.asked
        assert watch.leaked_blocks == 0


async def test_an_engine_that_is_away_is_asked_again():
    engine = Audited(IDLE)
    engine.available = False
    watch = AuditWatch(engine, every_s=0.001)
    watch.start()
    async with asyncio.timeout(60):
        while len(engine.asked) < 2:  # noqa: ASYNC110 -- the watch tells nobody
            await asyncio.sleep(0.001)
    engine.available = True
    async with asyncio.timeout(60):
        while not watch.leaked_blocks:  # noqa: ASYNC110 -- the same
            await asyncio.sleep(0.001)
    await watch.stop()


async def test_leaks_of_an_engine_that_was_lost_are_gone_with_it():
    engine = Audited(IDLE)
    watch = AuditWatch(engine)
    await watch.audit()
    assert watch.leaked_blocks == 3
    engine.epoch += 1
    assert watch.leaked_blocks == 0


async def test_the_watch_outlives_an_answer_that_makes_no_sense(caplog):
    engine = Audited(IDLE)
    answers = iter((IDLE, IDLE))  # the second is no audit's

    async def ask(query):
        return next(answers, None) or await Audited.ask(engine, query)

    engine.ask = ask
    await watched(engine)
    assert "the audit failed" in caplog.text
