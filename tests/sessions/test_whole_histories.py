"""A history that one request brings is planned as any history is."""

import pytest

from engine.ipc.messages import SubmitTurn
from policies.last_turns import LastTurns
from policies.plan import KeepTurns
from policies.sliding_window import SlidingWindow
from policies.token_budget import TokenBudget
from policies.views import ConversationView
from sessiond.domain import PolicyChoice
from sessiond.errors import RequestError
from sessiond.sessions.input_turns import split
from tests.harness.service import ANN, World, ask, entries, items, message, rendered
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.trimmed import EXACT, PREFIX, SHIFTED, changes, keep

LIMIT, CLOSE, REPLY = 1024, 2, 40
PAIRS = [(("user", f"question {n} " + "x" * n), ("assistant", f"answer {n}")) for n in range(40)]
HISTORY = [part for pair in PAIRS for part in pair]
TURNS = [rendered(*pair) for pair in PAIRS]
OWN = [*message("user", "and now?"), 259]
POLICIES = {
    "sliding_window": SlidingWindow(),
    "last_turns": LastTurns(turns=7),
    "token_budget": TokenBudget(),
}


@pytest.fixture
async def world(url, engine):
    world = await World.start(url, engine, policy=PolicyChoice(type="sliding_window"))
    world.policies._policies |= POLICIES  # noqa: SLF001 -- the shelf is the tests' own
    yield world
    await world.stop()


def asking(*more, **fields):
    return ask(*HISTORY, *more, "and now?", max_output_tokens=REPLY, **fields)


def kept_by(policy):
    """The turns that a policy keeps of this history."""
    plan = policy.plan(
        ConversationView(
            system_tokens=len(PREFIX),
            summary_tokens=0,
            turns=tuple(map(len, TURNS)),
            prompt_tokens=len(OWN),
            output_tokens=REPLY + CLOSE,
            limit_tokens=LIMIT,
        )
    )
    assert isinstance(plan, KeepTurns)
    return list(plan.turns)


def joined(turns):
    return [token for ids in turns for token in ids]


def test_an_input_is_split_after_replies() -> None:
    parts = split(items("a", ("assistant", "b"), ("assistant", "c"), ("system", "d"), "e"))
    assert [[item.text for item in part] for part in parts] == [["a", "b", "c"], ["d", "e"]]
    assert split(()) == [()]
    assert [len(part) for part in split(items("a", ("assistant", "b")))] == [2]


@pytest.mark.parametrize("name", POLICIES)
async def test_r03_a_long_history_in_one_request_is_trimmed_by_the_policy_in_force(
    world, engine, name
) -> None:
    request = asking(policy=PolicyChoice(type=name))
    turn = await world.service.turns.run(await world.service.turns.bind_chat(ANN, request))
    told = await entries(turn)
    kept = kept_by(POLICIES[name])
    assert len(kept) < len(TURNS)
    assert engine.sent(SubmitTurn)[-1].ids == [*PREFIX, *joined(TURNS[n] for n in kept), *OWN]
    (change,) = changes(told)
    assert (change.reason, change.context) == ("trimmed", "trimmed")
    assert change.dropped_turns == len(TURNS) - len(kept)
    assert change.tokens_before - change.tokens_after == sum(map(len, TURNS)) - sum(
        len(TURNS[n]) for n in kept
    )
    assert told[-1].usage.context == "trimmed"
    session = turn.accepted.session_id
    assert engine.contexts[session] == await world.context(session)
    stored = await world.service.inspector.input_items(ANN, turn.accepted.response_id, limit=100)
    assert len(stored.items) == len(HISTORY) + 1, "what was said stays as it was said"


@pytest.mark.parametrize("fidelity", ["exact", "shifted"])
async def test_r03_items_of_a_conversation_are_planned_as_the_same_history_in_one_request(
    world, engine, fidelity
) -> None:
    policy = PolicyChoice(type="sliding_window", fidelity=fidelity)
    one, _ = await world.turn(asking(policy=policy))
    view = await world.service.openings.create(ANN, items(*HISTORY[:31]), {})
    await world.service.conversations.add_items(ANN, view.id, items(*HISTORY[31:]))
    request = ask("and now?", max_output_tokens=REPLY, conversation=view.id, policy=policy)
    two = await world.begin(request)
    (change,) = changes(await entries(two))
    assert change.dropped_turns == len(TURNS) - len(kept_by(SlidingWindow()))
    assert engine.contexts[view.id] == engine.contexts[one.accepted.session_id]
    assert await world.context(view.id) == engine.contexts[view.id]


@pytest.mark.parametrize("policy", [EXACT, SHIFTED])
async def test_r03_turns_of_a_history_are_dropped_one_by_one_later(world, engine, policy) -> None:
    keep(world, 30, 32, 35)
    turn, finished = await world.turn(asking(policy=policy))
    session = turn.accepted.session_id
    reply = rendered(("user", "and now?"), ("assistant", finished.text))
    start = [*PREFIX, *joined(TURNS[n] for n in (30, 32, 35)), *reply]
    assert engine.contexts[session] == start
    keep(world, 1, 3)
    _, finished = await world.turn(ask("more", conversation=session, policy=policy))
    assert finished.usage.context == "trimmed"
    after = [*PREFIX, *TURNS[32], *reply, *rendered(("user", "more"), ("assistant", finished.text))]
    assert engine.contexts[session] == after == await world.context(session)


async def test_r03_another_server_sees_the_same_turns(url, world, engine) -> None:
    turn, _ = await world.turn(asking())
    session = turn.accepted.session_id
    before = world.service.live.get(session).layout
    await world.stop()
    other = await World.start(url, FakeEngine(), iter(range(1000, 2000)))
    assert (
        await other.store.layout("ann", before.prefix_tokens, turn.accepted.response_id) == before
    )
    assert len(before.turns) == len(kept_by(SlidingWindow())) + 1
    assert before.all_turns == len(TURNS) + 1
    await other.stop()


async def test_r03_a_history_that_goes_on_behind_a_stored_turn_is_planned_with_it(
    world, engine
) -> None:
    turn, _ = await world.turn(ask("first", max_output_tokens=REPLY))
    session = turn.accepted.session_id
    began = await world.begin(asking(conversation=session))
    told = await entries(began)
    stored = engine.contexts[session]
    assert stored == await world.context(session)
    kept = joined(TURNS[n] for n in kept_by(SlidingWindow()))
    assert stored[: len(PREFIX) + len(kept)] == [*PREFIX, *kept]
    (change,) = changes(told)
    assert change.dropped_turns == len(TURNS) + 1 - len(kept_by(SlidingWindow()))


@pytest.mark.parametrize("name", ["compaction", "summarize"])
async def test_r03_without_a_summary_the_policy_falls_back(world, engine, name) -> None:
    parameters = {"compact_threshold": 600} if name == "compaction" else {}
    turn = await world.begin(asking(policy=PolicyChoice(type=name, parameters=parameters)))
    told = await entries(turn)
    (change,) = changes(told)
    assert (change.reason, told[-1].status) == ("trimmed", "completed")
    ids = engine.sent(SubmitTurn)[-1].ids
    assert ids[-len(OWN) - len(TURNS[-1]) :] == [*TURNS[-1], *OWN]
    assert len(ids) <= LIMIT


@pytest.mark.parametrize(
    "fields", [{"policy": PolicyChoice(type="none")}, {"truncation": "disabled"}]
)
async def test_r03_without_a_policy_it_is_refused(world, engine, fields) -> None:
    with pytest.raises(RequestError) as refused:
        await world.begin(asking(**fields))
    assert refused.value.code == "context_length_exceeded"
    assert engine.sent(SubmitTurn) == []


async def test_r03_truncation_auto_trims_where_the_policy_is_none(world) -> None:
    _, finished = await world.turn(asking(policy=PolicyChoice(type="none"), truncation="auto"))
    assert finished.usage.context == "trimmed"
