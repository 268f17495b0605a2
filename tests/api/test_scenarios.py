"""Unmodified OpenAI clients against the whole stack: real sockets, service, store and loop.

The scenarios are openai-python's own (`openai_ws_scenarios.json`), as shapes: the same requests and
kinds of frames, with this server's model. One difference is the contract's: the id of a failed
turn can't be continued, so the turn after a failure continues from where the session stands.
"""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
)

from tests.api.hooks import Cancels, Steps
from tests.api.schemas import DATA, validate_event
from tests.fakes.fake_model import Draw
from tests.harness.stack import MODEL

SCENARIOS = {
    scenario["id"]: scenario["turns"]
    for scenario in json.loads((DATA / "openai_ws_scenarios.json").read_text())["scenarios"]
}
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
CLIENT_LIMITS = ResponsesWebSocketLimits(
    max_lanes=8,
    max_events_per_lane=256,
    max_events=1024,
    max_bytes_per_lane=1 << 22,
    max_bytes=1 << 22,
)


@asynccontextmanager
async def sdk_of(running):
    async with openai.AsyncOpenAI(
        api_key="sk-any",
        base_url=f"{running.served.http_url}/v1",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as sdk:
        yield sdk


@asynccontextmanager
async def connected(running):
    async with (
        sdk_of(running) as sdk,
        sdk.responses.connect(websocket_connection_options={"proxy": None}) as connection,
    ):
        yield connection


@asynccontextmanager
async def session_of(running):
    async with (
        connected(running) as connection,
        AsyncResponsesWebSocketSession(connection, limits=CLIENT_LIMITS) as session,
    ):
        yield session


async def play(connection, request):
    """Send a request through the client's typed API; give back the raw events to the last."""
    pairs = {key: value for key, value in request.items() if key != "type"}
    await connection.response.create(**pairs)
    events = []
    while not events or events[-1]["type"] not in TERMINAL:
        event = await asyncio.wait_for(connection.recv(), 60)
        events.append(event.to_dict())
        validate_event(events[-1])
    return events


def assert_shape(events, frames):
    """The scenario's kinds come in its order among ours, numbered, in its lane."""
    kinds = iter(event["type"] for event in events)
    assert all(frame["type"] in kinds for frame in frames), events
    assert events[-1]["type"] == frames[-1]["type"]
    assert {event.get("stream_id") for event in events} == {frames[0]["stream_id"]}
    if frames[0]["type"] != "error":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("name", ["completed_then_completed", "incomplete_then_completed"])
async def test_a_continued_turn(stack, name):
    first, second = SCENARIOS[name]
    async with stack() as running:
        async with connected(running) as connection:
            cut = {"max_output_tokens": 3} if name.startswith("incomplete") else {}
            running.model.script([72, 105, 33, 256][: 3 if cut else 4])
            events = await play(connection, {**first["request"], "model": MODEL, **cut})
            assert_shape(events, first["frames"])
            response = events[-1]["response"]
            assert response["incomplete_details"] == (
                {"reason": "max_output_tokens"} if cut else None
            )
            assert response["output"][0]["content"][0]["text"] == "Hi!"
            request = {
                **second["request"],
                "model": MODEL,
                "previous_response_id": response["id"],
            }
            running.model.script([79, 75, 256])
            again = await play(connection, request)
            assert_shape(again, second["frames"])
            assert again[-1]["response"]["conversation"] == response["conversation"]
            usage = again[-1]["response"]["usage"]
            earlier = response["usage"]["total_tokens"]
            assert usage["input_tokens_details"]["cached_tokens"] >= earlier - 16
        await running.idle()


async def test_a_failed_turn_and_the_next(stack):
    first, second = SCENARIOS["failed_then_completed"]
    async with stack() as running:
        async with connected(running) as connection:
            running.model.poison_at.add(running.model.steps + 1)
            events = await play(connection, {**first["request"], "model": MODEL})
            assert_shape(events, first["frames"])
            failed = events[-1]["response"]
            assert failed["error"]["code"] == "internal_error"
            request = {**second["request"], "model": MODEL}
            refused = await play(connection, {**request, "previous_response_id": failed["id"]})
            assert refused[-1]["error"]["code"] == "previous_response_not_found"
            del request["previous_response_id"]
            request["conversation"] = failed["conversation"]["id"]
            running.model.script([79, 75, 256])
            assert_shape(await play(connection, request), second["frames"])
        await running.idle()


async def test_a_nested_error_and_the_next_turn(stack):
    first, second = SCENARIOS["nested_error_then_completed"]
    async with stack() as running:
        async with connected(running) as connection:
            request = {**first["request"], "model": MODEL, "input": 7}
            events = await play(connection, request)
            assert_shape(events, first["frames"])
            expected, found = first["frames"][0], events[0]
            assert found["status"] == expected["status"]
            for name in ("type", "code", "param"):
                assert found["error"][name] == expected["error"][name]
            running.model.script([79, 75, 256])
            events = await play(connection, {**second["request"], "model": MODEL})
            assert_shape(events, second["frames"])
        await running.idle()


async def test_lanes_of_the_sdk_collect_final_responses(stack):
    async with stack(draw=Draw(stop_every=4)) as running:
        async with session_of(running) as session:
            lanes = [session.lane(f"lane-{number}") for number in range(4)]
            for lane in lanes:
                await lane.send(
                    {"type": "response.create", "model": MODEL, "input": lane_text(lane)}
                )
            finals = await asyncio.gather(*(lane.get_final_response() for lane in lanes))
            assert {final.status for final in finals} == {"completed"}
            assert len({final.conversation.id for final in finals}) == 4
            await lanes[0].send(
                {"type": "response.create", "model": MODEL, "input": "x", "temperature": 9}
            )
            with pytest.raises(ResponsesWebSocketError):
                await lanes[0].get_final_response()
        await running.idle()


def poison_from_now_on(model):
    """The next turn fails, though a step in advance of it may come first, which draws nothing."""
    model.poison_at.update(range(model.steps + 1, model.steps + 4))


def lane_text(lane):
    return f"text of {id(lane)}"


async def test_the_accumulator_of_the_sdk_takes_every_order_we_send(stack):
    """Prefill only, instructions that change, a cut turn, a cancelled one, a failed one."""
    async with stack() as running:
        async with session_of(running) as session:
            lane = session.lane("a")

            async def turn(**pairs):
                await lane.send({"type": "response.create", "model": MODEL, **pairs})
                accumulator = ResponsesWebSocketAccumulator()
                while True:
                    event = await asyncio.wait_for(lane.recv(), 60)
                    accumulator.add_event(event)
                    if event.type == "response.created" and pairs.get("max_output_tokens") == 999:
                        await running_cancel(session, event.response.id)
                        await cancels.told.wait()
                        steps.release()
                    if event.type in TERMINAL:
                        return accumulator

            warm = (await turn(input="hello", instructions="be kind", generate=False)).snapshot()
            assert warm.output_text == ""
            running.model.script([72, 105, 256])
            said = await turn(previous_response_id=warm.response_id)
            assert said.snapshot().output_text == "Hi"
            running.model.script([72, 105, 256])
            changed = await turn(
                previous_response_id=said.snapshot().response_id, input="x", instructions="be terse"
            )
            assert changed.get_final_response().usage.input_tokens_details.cached_tokens == 0
            running.model.script([120] * 4096)
            steps, cancels = Steps(running), Cancels(running)
            cut = await turn(
                previous_response_id=changed.snapshot().response_id,
                input="x",
                max_output_tokens=999,
            )
            assert cut.get_final_response().incomplete_details.reason == "cancelled"
            poison_from_now_on(running.model)
            failed = await turn(previous_response_id=cut.snapshot().response_id, input="x")
            assert failed.get_final_response().status == "failed"
        await running.idle()


async def running_cancel(session, response_id):
    await session.default.send({"type": "response.cancel", "response_id": response_id})


async def test_the_stream_helper_of_the_sdk_takes_every_order_we_send(stack):
    async with stack() as running, sdk_of(running) as sdk:
        running.model.script([72, 105, 256])
        async with sdk.responses.stream(
            model=MODEL, input="hello", instructions="be kind"
        ) as stream:
            first = [event async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "Hi"
        assert first[0].type == "response.created"
        running.model.script([72, 105, 256])
        async with sdk.responses.stream(
            model=MODEL, input="x", previous_response_id=final.id, instructions="be terse"
        ) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert "session.context_changed" in kinds
        assert final.usage.input_tokens_details.cached_tokens == 0
        running.model.script([120] * 64)
        async with sdk.responses.stream(
            model=MODEL, input="x", previous_response_id=final.id, max_output_tokens=5
        ) as stream:
            kinds = [event.type async for event in stream]
        assert kinds[-1] == "response.incomplete"


async def test_conversations_and_items_by_the_sdk(stack):
    async with stack() as running, sdk_of(running) as sdk:
        items = [{"type": "message", "role": "user", "content": "my name is Ann"}]
        conversation = await sdk.conversations.create(items=items, metadata={"a": "b"})
        running.model.script([72, 105, 256])
        response = await sdk.responses.create(
            model=MODEL, input="hello", conversation=conversation.id
        )
        assert response.conversation.id == conversation.id
        listed = await sdk.conversations.items.list(conversation.id, order="asc")
        texts = [item.content[0].text for item in listed.data]
        assert texts == ["my name is Ann", "hello", "Hi"]
        one = await sdk.conversations.items.retrieve(
            listed.data[0].id, conversation_id=conversation.id
        )
        assert one.role == "user"
        again = await sdk.responses.retrieve(response.id)
        assert again.output_text == "Hi"
        inputs = await sdk.responses.input_items.list(response.id)
        assert [item.content[0].text for item in inputs.data] == ["hello"]
        updated = await sdk.conversations.update(conversation.id, metadata={"c": "d"})
        assert updated.metadata == {"c": "d"}
        deleted = await sdk.conversations.delete(conversation.id)
        assert deleted.deleted
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.conversations.retrieve(conversation.id)
        assert caught.value.code == "conversation_not_found"
        models = await sdk.models.list()
        assert [model.id for model in models.data] == [MODEL]
        await running.idle()
