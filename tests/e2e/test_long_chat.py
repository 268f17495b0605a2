"""Chats that outgrow a window of 1,024 tokens, on the default model, under each policy."""

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from tests.e2e.support import BLOCK, assert_all_blocks_come_back, held_blocks, total_input
from tests.soak import SOAK

WINDOW = 1024
TURNS = 300 if SOAK else 60
QUESTION = "Question {}: name one thing that you would take to a lighthouse, and say why."
SYSTEM = "You are the keeper of a lighthouse. Answer in one sentence."

POLICIES = [
    {"type": "sliding_window"},
    {"type": "sliding_window", "fidelity": "shifted"},
    {"type": "last_turns", "turns": 15, "trim_to": 0.6},
    {"type": "last_turns", "turns": 15, "trim_to": 0.6, "fidelity": "shifted"},
    {"type": "token_budget", "max_tokens": 700},
]

pytestmark = pytest.mark.timeout(3600 if SOAK else 900)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(
        tmp_path_factory.mktemp("long"), ["--max-model-len", str(WINDOW)]
    ) as running:
        yield running


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: "-".join(map(str, one.values())))
async def test_a_long_chat_never_ends_in_an_error(server, policy):
    fields = {"temperature": 0, "max_output_tokens": 24, "instructions": SYSTEM}
    turns = []
    async with LoadClient(server.url, context_management=[policy], **fields) as client:
        for number in range(TURNS):
            turns.append(await client.ask(QUESTION.format(number)))
            assert turns[-1].end.outcome in {"completed", "incomplete"}, turns[-1].end
            assert total_input(turns[-1]) + 24 <= WINDOW
            assert held_blocks(server) <= 2 * WINDOW // BLOCK
        session = server.get("/v1/sessions")["data"][0]
        assert session["policy"] == "sliding_window"  # its own; turns asked for theirs
        assert session["tokens_kept"] <= WINDOW < session["tokens_total"]
        assert session["instructions"] == SYSTEM
    trimmed = [number for number, turn in enumerate(turns) if shortened(turns, number)]
    assert 1 <= len(trimmed) <= TURNS / 5
    for number in trimmed:
        stats = turns[number].end.stats
        if policy.get("fidelity") == "shifted":
            assert stats.recomputed_tokens <= BLOCK  # an end of turn that was owed, at most
        else:
            assert stats.recomputed_tokens <= total_input(turns[number])
    assert_all_blocks_come_back(server)


def shortened(turns, number):
    return number and total_input(turns[number]) < total_input(turns[number - 1])


async def test_the_longest_reply_is_as_long_as_asked(server):
    """llama.cpp#25026, #3969: window 1,024, prompt 900, 512 to come, no end of turn."""
    fields = {"temperature": 0, "instructions": SYSTEM}
    async with LoadClient(server.url, **fields) as client:
        while True:
            turn = await client.ask(QUESTION.format(1) * 4, max_output_tokens=40)
            if total_input(turn) + turn.end.stats.output_tokens > 900:
                break
        turn = await client.ask("Count from 1 to 1000.", max_output_tokens=512)
        assert turn.end.outcome in {"completed", "incomplete"}
        assert turn.end.stats.output_tokens <= 512
        assert total_input(turn) + 512 <= WINDOW
    assert_all_blocks_come_back(server)
