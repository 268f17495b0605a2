"""An engine that hangs in a step is found, told of, killed and started again."""

import asyncio
import os
import re
import signal

import pytest

from engine.config import EngineConfig
from engine.ids import TurnId
from engine.ipc.messages import CancelTurn, TurnDone, TurnFailed, TurnStarted
from engine.ipc.worker_client import LOOKS, STEP_TIMEOUT_S, Watchdog, WorkerEngine
from sessiond.settings import Settings
from tests.ipc.test_worker_client import QUICK, alive, ending_of, submit

pytestmark = pytest.mark.serial

HANG_S = 6.0  # looked at every 0.75 s


def worker(factory: str, **options) -> WorkerEngine:
    return WorkerEngine(
        EngineConfig(model="echo"),
        backoff=QUICK,
        loop_factory=f"tests.ipc.loops:{factory}",
        **options,
    )


def test_an_engine_has_its_whole_time_and_not_much_more():
    dog = Watchdog(80.0)
    assert dog.period_s * LOOKS == 80.0
    assert dog.poll()
    for _ in range(LOOKS - 1):
        assert not dog.poll()
        assert not dog.is_hung
    assert not dog.poll()
    assert dog.is_hung


@pytest.mark.parametrize("event", ["answered", "reset"])
def test_an_answer_or_another_engine_begins_the_time_anew(event: str):
    dog = Watchdog(80.0)
    for _ in range(LOOKS):
        dog.poll()
    getattr(dog, event)()
    assert dog.poll()
    assert not dog.is_hung


def test_a_step_may_take_minutes_by_default():
    assert Settings().step_timeout_s == STEP_TIMEOUT_S == 300.0


@pytest.mark.second
@pytest.mark.parametrize("how", ["stopped", "endless step"])
async def test_a_hung_engine_is_killed_and_the_next_turn_works(caplog, how: str):
    engine = worker("echo", step_timeout_s=HANG_S)
    await engine.start()
    pid = engine.pid
    streams = [engine.submit(submit(f"t{number}", words=10**9)) for number in range(20)]
    for stream in streams:
        assert isinstance(await anext(stream), TurnStarted)
    if how == "stopped":
        os.kill(pid, signal.SIGSTOP)
    else:
        engine.submit(submit("hang"))
    async with asyncio.timeout(60):
        endings = await asyncio.gather(*map(ending_of, streams))
        await engine.ready()
    assert {type(ending) for ending in endings} == {TurnFailed}
    assert {ending.code for ending in endings} == {"engine_restarted"}
    assert not alive(pid)
    assert (engine.hangs, engine.epoch) == (1, 2)
    assert isinstance(await ending_of(engine.submit(submit("next"))), TurnDone)
    assert engine.restarts == 1
    (line,) = [text for text in caplog.messages if "hangs" in text]
    assert f"process {pid}" in line
    assert re.search(r"its turns: t0, t1, .* and [45] more", line)
    if how == "endless step":
        assert "sleep_for_ever" in caplog.text, "where it hung"
    await engine.stop()


async def test_an_idle_engine_and_one_in_many_short_steps_answer():
    engine = worker("echo", step_timeout_s=8.0)
    await engine.start()
    pings = []
    say = engine._child.say  # noqa: SLF001 -- what no client sees
    engine._child.say = lambda message: (pings.append(message), say(message))  # noqa: SLF001 -- what no client sees
    stream = engine.submit(submit("a", words=10**9))
    assert isinstance(await anext(stream), TurnStarted)
    for _ in range(2):  # while it writes, and when it idles
        seen = len(pings)
        async with asyncio.timeout(60):
            while len(pings) < seen + 2 or engine._watchdog._missed is not None:  # noqa: ASYNC110, SLF001 -- another process answers
                await asyncio.sleep(0.01)
        engine.cancel(CancelTurn(turn=TurnId("a"), keep=False))
    assert (engine.hangs, engine.restarts) == (0, 0)
    await engine.stop()


async def test_0_lets_it_hang():
    engine = worker("echo", step_timeout_s=0)
    await engine.start()
    assert [task.get_name() for task in engine._tasks] == ["engine supervisor"]  # noqa: SLF001 -- what no client sees
    await engine.stop()
