import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineUnavailableError, ModelFileError
from engine.ids import SessionId, TurnId
from engine.ipc.messages import (
    CancelTurn,
    CloseContext,
    SubmitTurn,
    TurnDone,
    TurnFailed,
    TurnIncomplete,
    TurnStarted,
)
from engine.ipc.queries import EngineStats, GetStats
from engine.ipc.worker_client import Backoff, WorkerEngine
from tests.ipc.loops import INFO

QUICK = Backoff(first_s=0.01, most_s=0.05)


def worker(factory: str = "echo", *, model: str = "echo", **options) -> WorkerEngine:
    return WorkerEngine(
        EngineConfig(model=model),
        backoff=QUICK,
        loop_factory=f"tests.ipc.loops:{factory}",
        **options,
    )


def submit(name: str, words: int = 3) -> SubmitTurn:
    return SubmitTurn(
        turn=TurnId(name), session=SessionId("s"), ids=[1, 2], max_output_tokens=words
    )


async def ending_of(stream):
    return [event async for event in stream][-1]


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def wait_until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- other processes set no asyncio.Event
            await asyncio.sleep(0.01)


@pytest.fixture
async def engine():
    engine = worker()
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_turn_streams_through_the_child(engine):
    assert engine.info == INFO
    assert isinstance(await ending_of(engine.submit(submit("a"))), TurnDone)
    stats = await engine.ask(GetStats())
    assert isinstance(stats, EngineStats)


async def test_the_log_tells_at_start_what_computes_attention_and_why(caplog):
    caplog.set_level("INFO")
    engine = worker()
    await engine.start()
    await engine.stop()
    assert "attention none: there is none" in caplog.messages


async def test_cancel_reaches_the_child(engine):
    stream = engine.submit(submit("a", words=10**9))
    assert isinstance(await anext(stream), TurnStarted)
    engine.cancel(CancelTurn(turn=TurnId("a"), keep=True))
    assert isinstance(await ending_of(stream), TurnIncomplete)


async def test_an_idle_child_takes_no_steps(engine):
    before = await engine.ask(GetStats())
    await engine.ask(GetStats())
    after = await engine.ask(GetStats())
    assert after.step_times.count - before.step_times.count <= 2  # one per question


async def test_kill_9_during_8_streams_ends_each_and_the_next_turn_works(engine):
    streams = [engine.submit(submit(f"t{n}", words=10**9)) for n in range(8)]
    for stream in streams:
        assert isinstance(await anext(stream), TurnStarted)
    os.kill(engine.pid, signal.SIGKILL)
    endings = await asyncio.gather(*(ending_of(stream) for stream in streams))
    assert {type(e) for e in endings} == {TurnFailed}
    assert {e.code for e in endings} == {"engine_restarted"}
    assert (engine.epoch, engine.available) == (2, False)
    with pytest.raises(EngineUnavailableError):
        engine.submit(submit("now"))
    with pytest.raises(EngineUnavailableError):
        engine.send(CloseContext(session=SessionId("s")))
    engine.cancel(CancelTurn(turn=TurnId("t0"), keep=False))
    async with asyncio.timeout(60):
        await engine.ready()
    assert isinstance(await ending_of(engine.submit(submit("next"))), TurnDone)
    assert engine.restarts == 1


async def test_a_question_fails_when_the_child_dies_meanwhile(engine):
    os.kill(engine.pid, signal.SIGSTOP)
    question = asyncio.create_task(engine.ask(GetStats()))
    await asyncio.sleep(0)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailableError):
        await question


async def test_an_error_in_a_step_restarts_the_child_and_is_logged(engine, caplog):
    ending = await ending_of(engine.submit(submit("crash")))
    assert isinstance(ending, TurnFailed)
    assert ending.code == "engine_restarted"
    async with asyncio.timeout(60):
        await engine.ready()
    assert "ZeroDivisionError: the step went wrong" in caplog.text
    assert f"engine[{engine.pid}]" not in caplog.text  # it was the old one


async def test_what_the_child_prints_is_logged_line_by_line(engine, caplog):
    engine.submit(submit("print"))
    await wait_until(lambda: "to read" in caplog.text)
    assert f"engine[{engine.pid}] something" in caplog.messages
    assert f"engine[{engine.pid}] to read" in caplog.messages


async def test_ctrl_c_and_sigterm_are_the_parents(engine):
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    assert os.getpgid(engine.pid) != os.getpgid(0)
    assert isinstance(await ending_of(engine.submit(submit("a"))), TurnDone)
    assert engine.restarts == 0


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        ("bad_setting", ConfigError, r"kv_cache_memory must be at least 1 MiB .*got '0'\)"),
        ("bad_file", ModelFileError, "echo is not a model"),
        ("fault", EngineUnavailableError, "KeyError: 'weights'"),
        ("out_of_memory", EngineUnavailableError, "SIGKILL.*memory(.|\n)*about to allocate"),
    ],
)
async def test_a_child_that_can_not_start_says_why_and_is_not_tried_again(factory, error, words):
    engine = worker(factory)
    with pytest.raises(error, match=words):
        await engine.start()
    assert not engine.available
    await engine.stop()


async def test_stop_ends_the_child_and_the_running_turns():
    engine = worker()
    await engine.start()
    pid = engine.pid
    stream = engine.submit(submit("a", words=10**9))
    await engine.stop()
    assert isinstance(await ending_of(stream), TurnFailed)
    assert not alive(pid)
    with pytest.raises(EngineUnavailableError):
        engine.submit(submit("b"))


async def test_a_child_that_is_stopped_amid_its_words_closes_its_loop(tmp_path):
    """What its tiers have begun to write is finished there."""
    notes = tmp_path / "notes"
    engine = worker("noted", model=str(notes), stop_grace_s=60.0)
    await engine.start()
    stream = engine.submit(submit("a", words=10**9))
    assert isinstance(await anext(stream), TurnStarted)
    engine.send(CloseContext(session=SessionId("s"), erase=True))
    await engine.stop()
    assert repr(CloseContext(session=SessionId("s"), erase=True)) in notes.read_text()


async def test_stop_kills_a_child_that_hangs():
    engine = worker(stop_grace_s=0.05)
    await engine.start()
    pid = engine.pid
    os.kill(pid, signal.SIGSTOP)
    await engine.stop()
    assert not alive(pid)


async def test_start_can_be_interrupted():
    engine = worker()
    starting = asyncio.create_task(engine.start())
    await wait_until(lambda: engine._child is not None and engine._child._transport is not None)  # noqa: SLF001 -- before it has started
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    assert engine._child is not None  # noqa: SLF001 -- before it has started
    assert not alive(engine._child.pid)  # noqa: SLF001 -- before it has started


async def test_the_child_dies_with_its_parent():
    script = textwrap.dedent(
        """
        import asyncio, sys
        from engine.config import EngineConfig
        from engine.ipc.worker_client import WorkerEngine

        async def main():
            engine = WorkerEngine(
                EngineConfig(model="echo"), loop_factory="tests.ipc.loops:echo"
            )
            await engine.start()
            print(engine.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
        """
    )
    parent = subprocess.Popen(  # noqa: ASYNC220 -- its output is one line
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    await wait_until(lambda: not alive(pid))


def test_the_pause_before_a_restart_doubles_up_to_its_bound():
    backoff = Backoff()
    assert [backoff.delay_s(n) for n in (1, 2, 3, 7, 1000)] == [0.1, 0.2, 0.4, 5.0, 5.0]
