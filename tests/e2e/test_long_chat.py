"""Chats that outgrow a window of 1,024 tokens, on the default model, under each policy."""

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from tests.e2e.support import BLOCK, assert_all_blocks_come_back, held_blocks, total, total_input
from tests.soak import SOAK

WINDOW = 1024
TURNS = 300 if SOAK else 60
QUESTION = "Question {}: name one thing that you would take to a lighthouse, and say why."
SYSTEM = "You are the keeper of a lighthouse. Answer in one sentence."

REPLY = 24
CLOSE = 2  # tokens that end a turn
DIGITS = 2  # tokens that a late question may have more than the first

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


@pytest.fixture
def endless(tmp_path):
    """A server whose replies run to their limits on every instruction set."""
    flags = ["--max-model-len", str(WINDOW), "--ignore-eos"]
    with running_server(tmp_path / "endless", flags) as running:
        yield running


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: "-".join(map(str, one.values())))
async def test_a_long_chat_never_ends_in_an_error(server, policy):
    fields = {"temperature": 0, "max_output_tokens": REPLY, "instructions": SYSTEM}
    turns = []
    async with LoadClient(server.url, context_management=[policy], **fields) as client:
        for number in range(TURNS):
            turns.append(await client.ask(QUESTION.format(number)))
            assert turns[-1].end.outcome in {"completed", "incomplete"}, turns[-1].end
            assert total_input(turns[-1]) + REPLY <= WINDOW
            assert held_blocks(server) <= 2 * WINDOW // BLOCK
        session = server.get("/v1/sessions")["data"][0]
        assert session["policy"] == "sliding_window"  # its own; turns asked for theirs
        assert session["tokens_kept"] <= WINDOW < session["tokens_total"]
        assert session["instructions"] == SYSTEM
    trimmed = [number for number, turn in enumerate(turns) if shortened(turns, number)]
    assert_trimmed_seldom(policy, turns, trimmed)
    for number in trimmed:
        stats = turns[number].end.stats
        if policy.get("fidelity") == "shifted":
            assert stats.recomputed_tokens <= BLOCK  # an end of turn that was owed, at most
        else:
            assert stats.recomputed_tokens <= total_input(turns[number])
    assert_all_blocks_come_back(server)


def shortened(turns, number):
    return number and total_input(turns[number]) < total_input(turns[number - 1])


def assert_trimmed_seldom(policy, turns, trimmed):
    """As often as what was written needs, however long the replies came out.

    The questions alone outgrow the window. A trim frees a share of it, which later turns fill
    before the next one.
    """
    assert trimmed
    if policy["type"] == "last_turns":  # 15 turns are shorter than the window: turns are counted
        kept = round(policy["turns"] * policy["trim_to"])
        assert trimmed == list(range(policy["turns"] + 1, TURNS, policy["turns"] + 1 - kept))
        return
    limit = policy.get("max_tokens", WINDOW)
    for number in trimmed:
        whole = total(turns[number - 1]) + turns[number].end.stats.new_tokens
        assert whole + REPLY + 2 * CLOSE > limit, "no sooner than needed"
        if policy["type"] == "token_budget":  # the system prompt and the question are left
            assert total_input(turns[number]) <= total_input(turns[0]) + DIGITS
        else:
            assert total_input(turns[number]) + REPLY <= 0.8 * limit


async def test_the_longest_reply_is_as_long_as_asked(endless):
    """llama.cpp#25026, #3969: window 1,024, prompt 900, 512 to come, no end of turn."""
    fields = {"temperature": 0, "instructions": SYSTEM}
    async with LoadClient(endless.url, **fields) as client:
        for number in range(TURNS):  # of some 50 tokens each: none passes over 900 to 1,024
            turn = await client.ask(QUESTION.format(number), max_output_tokens=REPLY)
            if total(turn) > 900:
                break
        assert 900 < total(turn) <= WINDOW
        turn = await client.ask("Count from 1 to 1000.", max_output_tokens=512)
        assert turn.end.outcome == "incomplete"
        assert turn.end.stats.output_tokens == 512
        assert total_input(turn) + 512 <= WINDOW
    assert_all_blocks_come_back(endless)
