"""How much memory turns need: counted, warned of, refused."""

import logging

import pytest

from sessiond.errors import RequestError
from sessiond.sessions.demand import DrainRate, PoolDemand
from sessiond.sessions.limits import ServiceLimits
from tests.fakes.fake_clock import FakeClock
from tests.harness.service import World, ask, finish

POOL = 100


def demand(warn: float = 0.0, high: float = 0.0, every_s: float = 1.0) -> PoolDemand:
    """Two turns have ended before, one in so many seconds."""
    clock = FakeClock()
    rate = DrainRate(clock)
    for _ in range(2):
        rate.ended()
        clock.advance(every_s)
    return PoolDemand(ServiceLimits(demand_warn_watermark=warn, demand_high_watermark=high), rate)


def admit(of: PoolDemand, turn: str, tokens: int, user: str | None = "ada") -> None:
    of.admit(turn, tokens, user_id=user, pool_tokens=POOL)


def test_it_is_what_turns_at_work_have_in_their_contexts() -> None:
    wanted = demand()
    admit(wanted, "a", 30)
    admit(wanted, "b", 50)
    wanted.grow("b", 5)
    assert (wanted.tokens, wanted.ratio) == (85, 0.85)
    admit(wanted, "b", 40)
    assert wanted.tokens == 70, "planned anew"
    wanted.leave("a")
    wanted.leave("a")
    wanted.grow("a", 7)
    assert wanted.tokens == 40
    wanted.leave("b")
    assert wanted.tokens == 0


def test_beyond_the_high_watermark_turns_are_refused_until_enough_have_ended() -> None:
    wanted = demand(high=1.5, every_s=2.0)
    admit(wanted, "a", 60)
    admit(wanted, "b", 60)
    assert not wanted.is_high
    with pytest.raises(RequestError, match="2 turns need 120 tokens of KV and this one 90") as told:
        admit(wanted, "c", 90)
    assert (told.value.code, told.value.status) == ("queue_full", 429)
    assert told.value.retry_after_s == 2, "one of them has to end, and one ends every two seconds"
    with pytest.raises(RequestError) as told:
        admit(wanted, "c", 900)
    assert told.value.retry_after_s > 20
    assert wanted.tokens == 120
    admit(wanted, "d", 30)
    assert wanted.is_high


def test_who_has_no_turn_at_work_is_taken_beyond_it_once() -> None:
    wanted = demand(high=1.0)
    admit(wanted, "a", 100)
    with pytest.raises(RequestError):
        admit(wanted, "b", 10)
    with pytest.raises(RequestError):
        admit(wanted, "b", 10, user=None)
    admit(wanted, "c", 10, user="bob")
    with pytest.raises(RequestError):
        admit(wanted, "d", 10, user="bob")
    admit(wanted, "c", 20, user="bob")  # planned anew
    assert wanted.tokens == 120
    wanted.leave("c")
    admit(wanted, "d", 10, user="bob")


def test_alone_a_turn_is_never_refused_for_its_size() -> None:
    wanted = demand(high=0.1)
    admit(wanted, "a", 90)
    assert wanted.tokens == 90


def test_zero_is_no_bound() -> None:
    wanted = demand(warn=0.0, high=0.0)
    admit(wanted, "a", 1000)
    admit(wanted, "b", 9000)
    assert (wanted.is_high, wanted.is_warning, wanted.warnings) == (False, False, 0)


def test_it_warns_once_with_the_numbers_until_it_is_calm_again(caplog) -> None:
    wanted = demand(warn=0.8, high=3.0)
    with caplog.at_level(logging.WARNING):
        admit(wanted, "a", 70)
        assert not wanted.is_warning
        wanted.grow("a", 12)
        admit(wanted, "b", 20)
        wanted.leave("b")
        wanted.grow("a", 1)
    assert wanted.is_warning
    assert [record.getMessage() for record in caplog.records] == [
        (
            "memory pressure: 1 turns need 82 of the pool's 100 tokens of KV (82 %); "
            "above 3 pools new turns are refused"
        )
    ]
    wanted.leave("a")
    assert not wanted.is_warning
    admit(wanted, "c", 80)
    assert wanted.warnings == 2


class TestService:
    async def test_whatever_becomes_of_turns_nothing_is_left_of_what_they_wanted(
        self, url, engine
    ) -> None:
        world = await World.start(url, engine, demand_high_watermark=0.2)
        engine.auto = False
        turns = [await world.begin(ask("x" * 100), lane=str(number)) for number in range(1)]
        for _ in range(3):
            with pytest.raises(RequestError, match="turns need"):
                await world.begin(ask("y" * 150))
        name = turns[0].accepted.response_id
        engine.begin(name)
        engine.say(name, "word")
        engine.finish(name)
        await finish(turns[0])
        assert world.service.demand.tokens == 0
        for ending in ("fail", "cancel", "incomplete"):
            turn = await world.begin(ask("x" * 200))
            name = turn.accepted.response_id
            engine.begin(name)
            assert world.service.demand.tokens > 200
            match ending:
                case "fail":
                    engine.fail(name, "internal_error")
                case "cancel":
                    turn.cancel(keep=False)
                case _:
                    engine.incomplete(name, "max_output_tokens")
            await finish(turn)
            assert world.service.demand.tokens == 0, ending
        with pytest.raises(RequestError, match="5014 tokens"):
            await world.begin(ask("x" * 5000))
        assert world.service.demand.tokens == 0
        await world.stop()
