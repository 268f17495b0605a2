"""What is certain to be refused is refused before it costs anything."""

import pytest

from sessiond.domain import PolicyChoice
from sessiond.errors import RequestError
from sessiond.sessions.demand import PoolDemand
from tests.harness.service import ANN, ByteFormat, World, ask, finish, settled
from tests.sessions.quota_words import limit, refusal_of, use_of

BURST = 20


@pytest.fixture
def encoded(monkeypatch):
    """The texts that users' messages were encoded of."""
    texts, plain = [], ByteFormat.message

    def noted(self, role, text):
        if role == "user":
            texts.append(text)
        return plain(self, role, text)

    monkeypatch.setattr(ByteFormat, "message", noted)
    return texts


@pytest.fixture
def counted(monkeypatch):
    """The ids of the turns that were counted as demand."""
    turns, plain = [], PoolDemand.admit

    def noted(self, turn_id, tokens, **how):
        plain(self, turn_id, tokens, **how)
        turns.append(turn_id)

    monkeypatch.setattr(PoolDemand, "admit", noted)
    return turns


async def burst(world, **fields):
    """Turns in new conversations, all at once; those that began, and the refusals."""
    found = await settled(*(world.begin(ask(f"turn {n}", **fields)) for n in range(BURST)))
    refusals = [one for one in found if isinstance(one, RequestError)]
    return [one for one in found if not isinstance(one, BaseException)], refusals


async def end(engine, turns):
    for turn in turns:
        engine.finish(turn.accepted.response_id)
        await finish(turn)


async def test_r04_a_burst_over_a_limit_of_turns_is_refused_before_a_token_is_made(
    world, engine, encoded, counted
):
    await limit(world, max_concurrent_turns=3)
    engine.auto = False
    begun, refusals = await burst(world)
    assert len(begun) == len(encoded) == len(counted) == 3
    assert {error.code for error in refusals} == {"rate_limit_exceeded"}
    assert "3 turns run, and max_concurrent_turns is 3" in str(refusals[0])
    await end(engine, begun)
    begun, _ = await burst(world)
    assert len(begun) == 3, "none of the refused is counted"
    await end(engine, begun)
    assert (await use_of(world)).turns == world.service.demand.tokens == 0


async def test_r04_a_burst_over_a_limit_of_sessions_is_refused_before_a_token_is_made(
    world, engine, encoded, counted
):
    await limit(world, max_sessions=2)
    engine.auto = False
    begun, refusals = await burst(world)
    assert len(begun) == len(encoded) == len(counted) == 2
    assert {error.code for error in refusals} == {"quota_exceeded"}
    await end(engine, begun)


async def test_r04_a_turn_that_the_window_has_no_tokens_for_is_never_demand(world, engine, counted):
    await limit(world, tokens_per_minute=100)
    engine.auto = False
    begun, refusals = await burst(world, max_output_tokens=20)
    assert begun
    assert len(counted) == len(begun)
    assert {error.code for error in refusals} == {"rate_limit_exceeded"}
    await end(engine, begun)


async def test_r04_a_turn_that_cannot_be_planned_takes_no_place_from_the_next(world, engine):
    await limit(world, max_concurrent_turns=1)
    with pytest.raises(RequestError, match="input must not be empty"):
        await world.begin(ask())
    _, finished = await world.turn(ask("hi"))
    assert finished.status == "completed"


async def test_r04_a_turn_beyond_the_high_watermark_is_refused_before_a_token_is_made(
    url, engine, encoded
):
    world = await World.start(url, engine, demand_high_watermark=0.1)
    engine.auto = False
    pool = engine.info.total_blocks * engine.info.block_size
    begun = [await world.begin(ask("x" * (pool // 10), max_output_tokens=4))]
    refused = await refusal_of(world, ask("more"))
    assert (refused.code, len(encoded)) == ("queue_full", 1)
    await end(engine, begun)
    await world.stop()


async def test_r04_a_policy_that_cannot_be_used_is_refused_before_a_token_is_made(world, encoded):
    choice = PolicyChoice(type="last_turns", parameters={"turns": 0})
    with pytest.raises(RequestError, match="type of the context policy"):
        await world.begin(ask("hi", policy=choice))
    assert encoded == []


async def test_r04_a_resent_history_is_not_looked_up_when_the_server_is_full(
    url, engine, monkeypatch
):
    world = await World.start(url, engine, max_outstanding=1)
    engine.auto = False
    begun = [await world.begin(ask("hi"))]
    looked_up = []
    monkeypatch.setattr(world.store, "turn_by_digest", lambda *given: looked_up.append(given))
    with pytest.raises(RequestError, match="running or waiting"):
        await world.service.turns.bind_chat(ANN, ask("a", ("assistant", "b"), "c"))
    assert looked_up == []
    await end(engine, begun)
    await world.stop()
