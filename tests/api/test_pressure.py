"""The ladder as clients and operators see it: events, refusals, metrics, capacity."""

import asyncio
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sessiond.sessions.limits import ServiceLimits
from tests.api.tenants import ENDINGS, Person
from tests.api.test_policies import http_of, socket_of
from tests.fakes.fake_model import Draw

LIMITS = {"http_hold_s": 0.05, "reap_every_s": 0.02}


async def steps(running) -> dict[str, float]:
    async with http_of(running) as http:
        text = (await http.get("/metrics")).text
    return {
        sample.labels["step"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "sessiond_degradations_total"
    }


async def pressure(running) -> tuple[bool, dict]:
    async with http_of(running) as http:
        capacity = (await http.get("/health/capacity")).json()
    return capacity["accepting"], capacity["pressure"]


async def hear_until(talk, kind: str) -> list[dict]:
    events = [await talk.hear()]
    while events[-1]["type"] != kind:
        events.append(await talk.hear())
    return events


async def test_what_can_never_fit_is_refused_and_counted(stack):
    async with stack(num_blocks=8) as running, socket_of(running) as talk:
        assert set((await steps(running)).values()) == {0.0}, "all are there from the start"
        error = (await talk.turn("x" * 200))[-1]
        assert (error["type"], error["status"]) == ("error", 413)
        assert error["error"]["code"] == "request_too_large"
        assert (await steps(running))["refuse_impossible"] == 1
        assert (await talk.turn("hello"))[-1]["type"] != "error"


async def test_above_the_high_watermark_new_turns_are_told_when_to_come_again(stack):
    limits = ServiceLimits(demand_warn_watermark=0.3, demand_high_watermark=0.5, **LIMITS)
    async with (
        stack(num_blocks=12, service_limits=limits) as running,
        socket_of(running) as one,
        socket_of(running) as other,
    ):
        running.model.gate = gate = threading.Event()
        await one.say(type="response.create", model="fake", input="x" * 100, max_output_tokens=8)
        await hear_until(one, "response.in_progress")
        error = (await other.turn("y" * 50))[-1]
        assert (error["status"], error["error"]["code"]) == (429, "queue_full")
        assert int(error["error"]["headers"]["retry-after"]) >= 1
        gate.set()
        await hear_until(one, "response.incomplete")
        assert (await steps(running))["refuse_new"] == 1
        assert (await other.turn("y" * 50))[-1]["type"] != "error"
        assert await pressure(running) == (
            True,
            {"level": "none", "demand_tokens": 0, "demand_ratio": 0.0},
        )


@pytest.mark.parametrize("bound", [{"max_outstanding": 2}, {"demand_high_watermark": 0.5}])
async def test_a_user_whose_turns_fill_the_server_keeps_nobody_else_out(stack, bound):
    async with stack(keys=True, service_limits=ServiceLimits(**bound, **LIMITS)) as running:
        ada, bob = [await Person.join(running, name) for name in ("ada", "bob")]
        async with ada.socket() as flood, bob.socket() as other:
            running.model.gate = gate = threading.Event()
            for lane in "ab":
                await flood.create("x" * 800, max_output_tokens=100, stream_id=lane)
            for _ in range(2):
                await flood.hear("response.created")
            await flood.create("y" * 600, stream_id="c")
            assert (await flood.hear("error"))["error"]["code"] == "queue_full"
            await other.create("h" * 600, max_output_tokens=8)
            await other.hear("response.created")
            await other.create("z" * 600, max_output_tokens=8, stream_id="b")
            assert (await other.hear("error"))["error"]["code"] == "queue_full"
            gate.set()
            assert (await other.hear(*ENDINGS))["type"] in {
                "response.completed",
                "response.incomplete",
            }


async def test_capacity_and_metrics_warn_early(stack):
    limits = ServiceLimits(demand_warn_watermark=0.3, demand_high_watermark=0.5, **LIMITS)
    async with stack(num_blocks=12, service_limits=limits) as running:
        demand = running.served.service.demand
        demand.admit("a", 60, user_id="u", pool_tokens=192)
        assert await pressure(running) == (
            True,
            {"level": "warning", "demand_tokens": 60, "demand_ratio": 0.312},
        )
        demand.grow("a", 40)
        accepting, told = await pressure(running)
        assert (accepting, told["level"]) == (False, "high")
        async with http_of(running) as http:
            text = (await http.get("/metrics")).text
        assert "sessiond_pressure_warnings_total 1.0" in text
        demand.leave("a")


async def test_a_turn_that_waits_is_told_and_counted(stack):
    async with stack() as running, socket_of(running) as one, socket_of(running) as other:
        running.model.gate = gate = threading.Event()
        await one.say(type="response.create", model="fake", input="x", max_output_tokens=4)
        await hear_until(one, "response.in_progress")
        await other.say(type="response.create", model="fake", input="y", max_output_tokens=4)
        await hear_until(other, "response.queued")
        gate.set()
        await hear_until(other, "response.in_progress")
        # asked while the engine is free: it answers between steps
        assert (await steps(running))["queue"] >= 1


async def test_a_turn_that_waited_too_long_is_told_and_counted(stack, monkeypatch):
    limits = ServiceLimits(queue_timeout_s=1.0, **LIMITS)
    async with (
        stack(service_limits=limits, engine_config={"max_num_seqs": 1}) as running,
        socket_of(running) as one,
        socket_of(running) as other,
    ):
        running.model.gate = gate = threading.Event()
        stopped, cancel = asyncio.Event(), running.engine.cancel
        monkeypatch.setattr(
            running.engine, "cancel", lambda command: (cancel(command), stopped.set())
        )
        await one.say(type="response.create", model="fake", input="x", max_output_tokens=4)
        await hear_until(one, "response.in_progress")
        await other.say(type="response.create", model="fake", input="y", max_output_tokens=4)
        await hear_until(other, "response.queued")
        await stopped.wait()  # the engine hears of it when its step has ended
        gate.set()
        failed = (await hear_until(other, "response.failed"))[-1]
        assert failed["response"]["error"]["code"] == "queue_timeout"
        assert (await steps(running))["queue_timeout"] == 1
        assert (await other.turn("y"))[-1]["type"] != "error"


async def test_a_preempted_turn_is_notified_and_loses_nothing(stack):
    async with (
        stack(num_blocks=10, draw=Draw()) as running,
        socket_of(running) as one,
        socket_of(running) as other,
    ):
        running.model.gate = gate = threading.Event()  # so that both run at a time
        turn = {"type": "response.create", "model": "fake", "max_output_tokens": 70}
        told = []
        for talk in (one, other):
            await talk.say(**turn, input="x" * 60)
            told.append([await talk.hear()])
        gate.set()
        for talk, events in zip((one, other), told, strict=True):
            events.extend(await hear_until(talk, "response.incomplete"))
        degraded = [
            (event, events)
            for events in told
            for event in events
            if event["type"] == "session.degraded"
        ]
        assert [event["step"] for event, _ in degraded].count("preempt") == 1
        for event, events in degraded:
            assert event["session"] == events[0]["response"]["conversation"]["id"]
            assert event["reason"] == "memory_pressure"
        for events in told:
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events[-1]["type"] == "response.incomplete"
            assert events[-1]["response"]["incomplete_details"]["reason"] == "max_output_tokens"
            assert events[-1]["response"]["usage"]["output_tokens"] == 70
        assert (await steps(running))["preempt"] >= 1
