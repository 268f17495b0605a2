"""A chat that outgrows a window of 1,024 tokens under `compaction`, on the default model."""

import json
import time

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import NO_REUSE, running_server
from engine.files.catalog import resolve_model
from sessiond.assembly import load_text_format
from sessiond.sessions.summary_writer import QUESTION
from sessiond.store.store import Store
from tests.e2e.support import BLOCK, assert_all_blocks_come_back, held_blocks, total_input
from tests.soak import SOAK

WINDOW = 1024
TURNS = 300 if SOAK else 60
SUMMARY = 160
SHORT_SUMMARY = 48  # the least
KEPT = 4
QUESTION_OF_TURN = "Question {}: name one thing that you would take to a lighthouse, and say why."
SYSTEM = "You are the keeper of a lighthouse. Answer in one sentence."
POLICY = {"type": "compaction", "keep_turns": KEPT, "summary_tokens": SUMMARY}

pytestmark = pytest.mark.timeout(3600 if SOAK else 900)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "server"


# Replies and summaries run to their limits, so that the number of summaries follows from token
# counts. Where the model stops by itself depends on the rounding of the instruction set.
FLAGS = ["--max-model-len", str(WINDOW), "--ignore-eos"]


@pytest.fixture
def server(folder):
    with running_server(folder, FLAGS) as running:
        yield running
        assert "Traceback" not in running.log, running.log


async def ask(client, text):
    """One turn, with what was told of the context and what the response says of itself."""
    turn = await client.send(text)
    changes, response = [], {}
    while turn.end is None:
        frame = await client.socket.recv()
        turn.feed(frame, at_s=time.perf_counter())
        event = json.loads(frame)
        if event["type"] == "session.context_changed":
            changes.append(event)
        response = event.get("response", response)
    client.tip = turn.end.tip or client.tip
    return turn, changes, response


async def context_of(folder, session, tip):
    """The ids that the model saw and wrote, as the database has them."""
    store = Store(f"sqlite+aiosqlite:///{folder / 'sessiond.db'}")
    try:
        record = await store.find_session("local", session)
        return await store.context_ids("local", record.prompt.id, tip)
    finally:
        await store.close()


def place_of(part, ids):
    """Where the ids of a message begin among others; None: they are not there."""
    part = list(part)
    return next((at for at in range(len(ids)) if ids[at : at + len(part)] == part), None)


async def test_a_long_chat_is_summarised_and_goes_on(server, folder):
    fields = {"temperature": 0, "max_output_tokens": 24, "instructions": SYSTEM}
    reasons, told, responses = [], [], []
    async with LoadClient(server.url, context_management=[POLICY], **fields) as client:
        for number in range(TURNS):
            turn, changes, response = await ask(client, QUESTION_OF_TURN.format(number))
            assert turn.end.outcome in {"completed", "incomplete"}, turn.end
            assert total_input(turn) + 24 <= WINDOW
            assert held_blocks(server) <= 3 * WINDOW // BLOCK  # a summary may be under way
            reasons += [change["reason"] for change in changes]
            responses.append(response)
            told.append(response["sessiond"])
            assert (told[-1]["context"] == "summarized") == bool(reasons)
            assert told[-1]["summary_tokens"] <= SUMMARY
        session = server.get("/v1/sessions")["data"][0]
        assert session["instructions"] == SYSTEM
        ids = await context_of(folder, session["id"], client.tip)
        usage = session["usage"]
    assert set(reasons) == {"summarized"}
    assert 3 <= len(reasons) <= TURNS / 5
    text = load_text_format(resolve_model("smollm2-135m-instruct"))
    system_prefix = [*text.open(SYSTEM)]
    assert ids[: len(system_prefix)] == system_prefix, "the system prompt is first, and whole"
    pair = [*text.message("user", QUESTION), *text.generation_prompt]
    assert ids[len(system_prefix) : len(system_prefix) + len(pair)] == pair, "then the summary"
    seen = ids[len(system_prefix) + told[-1]["summary_tokens"] :]
    kept = [
        number
        for number in range(TURNS)
        if place_of(text.message("user", QUESTION_OF_TURN.format(number)), seen) is not None
    ]
    assert kept == list(range(kept[0], TURNS)), "the tail, without a gap"
    assert len(kept) >= KEPT
    told_output = sum(response["usage"]["output_tokens"] for response in responses)
    assert usage["output_tokens"] > told_output, "the summaries are charged"
    assert_all_blocks_come_back(server)


async def talk(url, turns, **policy):
    """The replies of a chat, and what was told of its context."""
    fields = {"temperature": 0, "max_output_tokens": 40, "instructions": SYSTEM}
    replies, reasons = [], []
    async with LoadClient(url, context_management=[POLICY | policy], **fields) as client:
        for number in range(turns):
            turn, changes, response = await ask(client, QUESTION_OF_TURN.format(number))
            replies.append(turn.text)
            reasons.append(
                [(change["reason"], response["sessiond"]["summary_tokens"]) for change in changes]
            )
    return replies, reasons


async def test_replies_after_summaries_are_those_of_a_server_that_computes_all_anew(
    server, tmp_path
):
    """Summaries included: they are drawn greedily, from the same ids.

    The threshold is never reached before the window is full: then a turn waits for its summary, so
    that both servers have it at the same turn. Summaries are short, so that also slow kernels end
    them long before a turn gives up waiting.
    """
    turns = 30
    policy = {"summary_tokens": SHORT_SUMMARY, "compact_threshold": WINDOW}
    with running_server(tmp_path / "recomputing", [*FLAGS, *NO_REUSE]) as recomputing:
        expected = await talk(recomputing.url, turns, **policy)
    told = await talk(server.url, turns, **policy)
    assert told == expected
    replies, reasons = told
    assert all(replies)
    assert sum(map(bool, reasons)) >= 2
    assert {reason for turn in reasons for reason, _ in turn} == {"summarized"}
    assert_all_blocks_come_back(server)
