"""Whole servers in the first ring: serve, chat, the SDK, a client that leaves, a kill."""

import contextlib

import pytest
from openai import OpenAI

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from tests.e2e.support import assert_all_blocks_come_back
from tests.e2e.test_chat_command import chat, reused_tokens
from tests.e2e.test_reclaim import LONG_TASK, until_text, vanish
from tests.e2e.test_sdk_clients import messages_of, python_turns

# the SDK opens its sockets in a way that its own dependency is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")


@pytest.fixture(scope="module")
def smoked(tmp_path_factory):
    """A server with one database file."""
    with running_server(tmp_path_factory.mktemp("smoke"), ["--http-hold-s", "1"]) as running:
        yield running
        assert "Traceback" not in running.log, running.log


def test_the_terminal_client_talks_and_reuses_what_was_said(smoked):
    done = chat(smoked, piped="Name a colour.\nAnother one?\n")
    assert done.returncode == 0, done.stderr
    first, second = reused_tokens(done)
    assert first < second
    assert_all_blocks_come_back(smoked)


async def test_a_client_that_leaves_amid_a_reply_gives_everything_back(smoked):
    async with LoadClient(smoked.url, temperature=0) as client:
        turn = await client.send(LONG_TASK, max_output_tokens=1000)
        await until_text(client, turn)
        vanish(client)
    assert_all_blocks_come_back(smoked)


def test_a_chat_of_the_sdk_outlives_a_kill_of_the_server(smoked):
    first, second, *_ = messages_of("Ada")
    client = OpenAI(api_key="unused", base_url=f"{smoked.url}/v1")
    with client, client.responses.connect() as socket:
        (turn,) = python_turns(socket, [first])
        smoked.kill()
        with contextlib.suppress(Exception):
            socket.close()
    smoked.start()
    with OpenAI(api_key="unused", base_url=f"{smoked.url}/v1") as again:
        stored = again.responses.retrieve(turn.response_id)
        assert (stored.output_text, stored.usage.output_tokens) == (turn.text, turn.output_tokens)
        answer = again.responses.create(
            model="smollm2-135m-instruct",
            input=second,
            previous_response_id=turn.response_id,
            max_output_tokens=4,
        )
    assert answer.usage.input_tokens > turn.input_tokens + turn.output_tokens
    assert_all_blocks_come_back(smoked)
