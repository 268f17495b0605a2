import json
import subprocess
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI

from benchmarks.server_process import NO_REUSE, running_server
from tests.e2e.conftest import JS
from tests.e2e.support import ChatTurn, assert_all_blocks_come_back, assert_only_new_tokens_cost

# the SDK opens its sockets in a way that its own dependency is about to drop
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

MODEL = "smollm2-135m-instruct"
MAX_TOKENS = 24


def messages_of(name):
    """Six messages; the name in the first keeps one chat's blocks from being hits of another."""
    return [
        f"{name} is my name. I live near a lighthouse. Please greet me in one sentence.",
        "What is the capital of France?",
        "用中文说一句你好。🙂",
        "Name three colours.",
        "Write a Python line that prints 1 to 3.",
        "Thanks. Say good-bye to me.",
    ]


def python_chat(server, messages):
    client = OpenAI(api_key="unused", base_url=f"{server.url}/v1")
    with client, client.responses.connect() as socket:
        return list(python_turns(socket, messages))


def python_turns(socket, messages):
    previous = {}
    for message in messages:
        socket.response.create(
            model=MODEL, input=message, temperature=0, max_output_tokens=MAX_TOKENS, **previous
        )
        text = ""
        for event in socket:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type in ("response.completed", "response.incomplete"):
                break
            else:
                assert event.type not in ("response.failed", "error"), event
        assert event.response.output_text == text
        previous = {"previous_response_id": event.response.id}
        yield ChatTurn.of(event.response.model_dump(), text)


def javascript_chat(server, node, messages):
    command = [node, "chat.mjs", f"{server.url}/v1", json.dumps(messages), str(MAX_TOKENS)]
    done = subprocess.run(command, check=False, cwd=JS, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [ChatTurn.of(line["response"], line["text"]) for line in lines]


def assert_answers_as_if_nothing_were_kept(turns, recomputing_server, messages):
    expected = python_chat(recomputing_server, messages)
    assert all(turn.cached_tokens == 0 for turn in expected)
    assert [turn.text for turn in turns] == [turn.text for turn in expected]


def test_python_chat_of_six_turns_costs_only_new_tokens(server, recomputing_server):
    messages = messages_of("Ada")
    turns = python_chat(server, messages)
    assert_only_new_tokens_cost(turns)
    assert_all_blocks_come_back(server)
    assert_answers_as_if_nothing_were_kept(turns, recomputing_server, messages)


def resent_chat(server, messages):
    """The same chat by a client that resends its history; every other reply is streamed."""
    history, turns = [], []
    with OpenAI(api_key="unused", base_url=f"{server.url}/v1") as client:
        for number, message in enumerate(messages):
            history.append({"role": "user", "content": message})
            turn = completion(client, history, stream=number % 2 == 1)
            history.append({"role": "assistant", "content": turn.text})
            turns.append(turn)
    return turns


def completion(client, history, *, stream):
    asked = {"model": MODEL, "messages": history, "temperature": 0, "max_tokens": MAX_TOKENS}
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**asked))
        text = "".join(part.delta.content or "" for one in chunks for part in one.choices)
        last = chunks[-1]
    else:
        last = client.chat.completions.create(**asked)
        text = last.choices[0].message.content
    return ChatTurn(
        response_id=last.id,
        text=text,
        input_tokens=last.usage.prompt_tokens,
        cached_tokens=last.usage.prompt_tokens_details.cached_tokens,
        output_tokens=last.usage.completion_tokens,
    )


def test_a_resent_history_of_six_turns_costs_only_new_tokens(server, recomputing_server):
    messages = messages_of("Edsger")
    turns = resent_chat(server, messages)
    assert_only_new_tokens_cost(turns)
    assert_all_blocks_come_back(server)
    assert_answers_as_if_nothing_were_kept(turns, recomputing_server, messages)


def test_r03_a_long_history_is_trimmed_however_it_comes_in_one_request(tmp_path):
    said = [
        {"role": role, "content": f"{role} says {number}: " + "the sea is wide. " * 4}
        for number in range(30)
        for role in ("user", "assistant")
    ]
    messages = [*said, {"role": "user", "content": "And now?"}]
    with (
        running_server(tmp_path, ["--max-model-len", "512"]) as server,
        OpenAI(api_key="unused", base_url=f"{server.url}/v1", max_retries=0) as client,
    ):
        chat = completion(client, messages, stream=False)
        asked = {"model": MODEL, "temperature": 0, "max_output_tokens": MAX_TOKENS}
        response = client.responses.create(input=messages, truncation="auto", **asked)
        conversation = client.conversations.create(items=said[:20])
        client.conversations.items.create(conversation.id, items=said[20:40])
        client.conversations.items.create(conversation.id, items=said[40:])
        last = client.responses.create(input=messages[-1:], conversation=conversation.id, **asked)
        texts = {chat.text, response.output_text, last.output_text}
        assert len(texts) == 1
        assert {response.usage.input_tokens, last.usage.input_tokens} == {chat.input_tokens}
        assert 256 < chat.input_tokens < 512
        with pytest.raises(BadRequestError, match="no trimming policy"):
            client.responses.create(input=messages, truncation="disabled", **asked)
        history = [*messages, {"role": "assistant", "content": chat.text}]
        history.append({"role": "user", "content": "Tell me more."})
        again = completion(client, history, stream=False)
        assert again.cached_tokens >= chat.input_tokens - 16, (
            "the kept turns are not computed again"
        )


@pytest.mark.timeout(900)
def test_a_chat_on_torch_in_float32_costs_only_new_tokens_too(tmp_path):
    messages = messages_of("Ada")
    with running_server(tmp_path / "kept", ["--dtype", "float32"]) as kept:
        turns = python_chat(kept, messages)
        assert "attention torch" in kept.log
    assert_only_new_tokens_cost(turns)
    with running_server(tmp_path / "recomputed", ["--dtype", "float32", *NO_REUSE]) as recomputed:
        assert_answers_as_if_nothing_were_kept(turns, recomputed, messages)


@pytest.mark.extra(stack="js")
def test_javascript_chat_of_six_turns_costs_only_new_tokens(server, recomputing_server, node):
    messages = messages_of("Grace")
    turns = javascript_chat(server, node, messages)
    assert len(turns) == len(messages)
    assert_only_new_tokens_cost(turns)
    assert_all_blocks_come_back(server)
    assert_answers_as_if_nothing_were_kept(turns, recomputing_server, messages)


@pytest.mark.extra(stack="agents")
def test_a_chat_of_the_agents_sdk_costs_only_new_tokens(server, agents_python):
    script = Path(__file__).with_name("agents_chat.py")
    command = [agents_python, str(script), f"{server.url}/v1", json.dumps(messages_of("Barbara"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    turns = [
        ChatTurn(
            response_id=response_id,
            text=text,
            input_tokens=input_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
        )
        for response_id, text, input_tokens, cached_tokens, output_tokens in map(
            json.loads, done.stdout.splitlines()
        )
    ]
    assert len(turns) == len(messages_of("Barbara"))
    assert_only_new_tokens_cost(turns)
    assert_all_blocks_come_back(server)
