"""`/policy` and `/fork` in a chat, against the real gateway and service."""

import asyncio
import re
import sys

import pytest

from sessiond.api.auth import LOCAL
from sessiond.cli.chat import read_policy
from tests.harness.stack import real_stack


@pytest.fixture
def stack(url):
    return lambda **options: real_stack(url, **options)


async def chat(running, *lines):
    """A chat in a process of its own; returns its exit code and what it remarked."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sessiond", "chat", "--url", running.served.http_url),
        *("--max-output-tokens", "8"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, remarks = await asyncio.wait_for(process.communicate("\n".join(lines).encode()), 60)
    return process.returncode, remarks.decode()


async def test_a_policy_is_shown_set_kept_to_and_cleared(stack):
    async with stack() as running:
        code, remarks = await chat(
            running,
            "/policy",
            "one",
            "two",
            "/policy",
            "/policy last_turns turns=1 fidelity=exact",
            "three",
            "/policy default",
        )
    assert code == 0
    said = [line for line in remarks.splitlines() if "policy" in line or "context" in line]
    assert said[0] == "policy none, KV so far exact"
    assert said[1] == "policy last_turns, KV so far exact"
    assert said[2].startswith("[context changed (trimmed): ")
    assert said[2].endswith("1 turn dropped]")
    assert said[3] == "policy none, KV so far exact"
    assert "There is no conversation yet" in remarks


async def test_a_wrong_policy_is_explained_and_the_chat_goes_on(stack):
    async with stack() as running:
        code, remarks = await chat(
            running, "one", "/policy last_turns turns", "/policy last_turns turns=-1", "two"
        )
    assert code == 0
    assert "must be name=value, as in turns=30 (got turns)" in remarks
    assert (
        "turns of the context policy 'last_turns' must be a whole number of 0 or more (got -1)"
        in remarks
    )
    assert remarks.count("first token") == 2


async def test_a_fork_goes_on_in_a_copy(stack):
    async with stack() as running:
        code, remarks = await chat(running, "/fork", "one", "/fork", "two")
        assert code == 0
        copy, first = re.search(r"You are now in (\w+); (\w+) is unchanged", remarks).groups()
        service = running.served.service
        views = [await service.inspector.session(LOCAL, session) for session in (copy, first)]
    assert [len({turn.response_id for turn in view.turns}) for view in views] == [2, 1]
    assert "There is no conversation yet" in remarks


def test_words_become_what_the_server_takes():
    assert read_policy(["none"]) == {"type": "none"}
    words = ["sliding_window", "max_tokens=900", "trim_to=0.5", "fidelity=shifted"]
    assert read_policy(words) == {
        "type": "sliding_window",
        "max_tokens": 900,
        "trim_to": 0.5,
        "fidelity": "shifted",
    }


@pytest.mark.parametrize("word", ["turns", "=3", "turns="])
def test_a_word_that_is_no_pair_is_named(word):
    with pytest.raises(ValueError, match=f"must be name=value.*got {word}"):
        read_policy(["last_turns", word])
