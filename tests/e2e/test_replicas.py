"""Two whole servers on one database."""

import asyncio
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from tests.e2e.support import assert_all_blocks_come_back, wait_until

GREEDY = {"temperature": 0, "max_output_tokens": 16}
HEARTBEAT_S = 2.0  # a lease of three, which a busy machine must not let run out
FIRST, SECOND, THIRD = "Tell me about the sea.", "And the mountains?", "Which do you like better?"
LONG = "Write a very long story about a lighthouse."


@pytest.fixture
def pair(lend_database, tmp_path):
    """Two servers that have started at once on an empty database."""
    flags = ["--replica-heartbeat-s", str(HEARTBEAT_S), "--http-hold-s", "1"]
    with lend_database(migrated=False) as db, ExitStack() as stack, ThreadPoolExecutor() as pool:
        runs = [running_server(tmp_path / name, flags, db=db) for name in ("a", "b")]
        yield list(pool.map(stack.enter_context, runs))


async def until_text(client, turn):
    while not turn.text:
        assert turn.end is None, turn.end
        turn.feed(await client.socket.recv(), at_s=0.0)


async def test_a_conversation_moves_between_servers_and_never_runs_on_both(pair, server):
    async with LoadClient(server.url, **GREEDY) as client:
        alone = [await client.ask(text) for text in (FIRST, SECOND, THIRD, SECOND)]
    async with LoadClient(pair[0].url, **GREEDY) as a, LoadClient(pair[1].url, **GREEDY) as b:
        moved = [await a.ask(FIRST)]
        b.tip = a.tip
        moved.append(await b.ask(SECOND))
        a.tip = b.tip
        moved.append(await a.ask(THIRD))
        assert len({turn.session_id for turn in moved}) == 1

        session = moved[0].session_id
        tip, a.tip = a.tip, None
        running = await a.send(LONG, conversation=session, max_output_tokens=3000)
        await until_text(a, running)
        b.tip = None
        refused = await b.ask(SECOND, conversation=session)
        assert (refused.end.outcome, refused.end.code) == ("refused", "turn_in_progress")

        await asyncio.to_thread(pair[0].kill)
        await a.finish(running)
        assert running.end.outcome == "cut"
        b.tip = tip
        while (after := await b.ask(SECOND)).session_id != session:
            b.tip = tip  # until the lease is over it is a fork
        moved.append(after)
    assert [turn.text for turn in moved] == [turn.text for turn in alone]
    await asyncio.to_thread(pair[0].start)
    async with LoadClient(pair[0].url, **GREEDY) as a:
        a.tip = after.end.tip
        assert (await a.ask(THIRD)).session_id == session
    for running_one in pair:
        assert_all_blocks_come_back(running_one)
    statuses = {
        turn["status"] for turn in pair[1].get(f"/v1/sessions/{session}")["turns"] if turn["kept"]
    }
    assert statuses <= {"completed", "incomplete"}


async def test_a_server_whose_database_is_away_says_so_and_recovers(tmp_path, postgres):
    from tests.store.postgres import running_postgres

    flags = ["--replica-heartbeat-s", "0.2"]
    with running_postgres() as database:
        url = database.url(database.create())
        with running_server(tmp_path / "one", flags, db=url) as server:
            async with LoadClient(server.url, **GREEDY) as client:
                first = await client.ask(FIRST)
                await asyncio.to_thread(database.stop, at_once=True)
                wait_until(lambda: not server.is_ready(), what="not being ready")
                refused = await client.ask(SECOND)
                assert (refused.end.outcome, refused.end.code) == ("refused", "internal_error")
                assert "database" in refused.end.detail
                with pytest.raises(urllib.error.HTTPError, match="500") as caught:
                    server.get("/v1/sessions")
                caught.value.close()
                await asyncio.to_thread(database.start)
                wait_until(server.is_ready, what="being ready")
                second = await client.ask(SECOND)
            assert second.end.outcome in {"completed", "incomplete"}
            assert second.session_id == first.session_id
            assert "Traceback" not in server.log
