"""Conversations that outgrow their window, on the real engine loop."""

import asyncio

import pytest

from engine.ipc.queries import GetStats
from sessiond.domain import PolicyChoice
from sessiond.errors import RequestError
from tests.harness.service import (
    DEFAULT,
    ROLES,
    finish,
    message,
    rendered,
    settled,
    until,
)
from tests.sessions.long_chat import Chat, said
from tests.sessions.rig import Rig, StepGate, greedy, reply_after

pytestmark = pytest.mark.second

PREFIX = message("system", DEFAULT)
WINDOW = 1024


def sliding(fidelity="exact"):
    return PolicyChoice(type="sliding_window", fidelity=fidelity)


@pytest.mark.parametrize("fidelity", ["exact", "shifted"])
async def test_300_turns_in_a_window_of_1024_tokens(start, fidelity):
    rig = Rig()
    chat = Chat(await start(rig, policy=sliding(fidelity)))
    blocks = 0
    for number in range(300):
        finished = await chat.say(said(number))
        assert chat.visible[: len(PREFIX)] == PREFIX
        assert chat.visible[len(PREFIX)] == ROLES["user"]
        assert len(chat.visible) <= WINDOW
        usage = finished.usage
        told = usage.reused_tokens + usage.restored_tokens
        assert told + usage.recomputed_tokens + usage.new_tokens == len(chat.prompt)
        assert chat.prompt[-1] == ROLES["assistant"]
        assert (usage.context == "trimmed") == any(chat.changes)
        if fidelity == "exact":
            assert finished.text == reply_after(chat.prompt)
        elif chat.changes[-1]:
            assert usage.recomputed_tokens == 0  # nothing of what is kept
        blocks = max(blocks, (await rig.engine.ask(GetStats())).active_blocks)
    trims = sum(bool(changes) for changes in chat.changes)
    assert 5 < trims <= 300 // 5
    assert blocks <= 2 * WINDOW // 16
    live = chat.world.service.live.get(chat.session)
    assert len(live.layout.turns) < 50
    assert live.layout.tokens == live.tokens == len(chat.visible)
    assert live.layout == await chat.world.store.layout("ann", len(PREFIX), live.tip_id)


@pytest.mark.parametrize("fidelity", ["exact", "shifted"])
async def test_a_chat_whose_server_is_replaced_goes_on_as_if_it_had_not(start, fidelity):
    turns, middle = 60, 40
    undisturbed = Chat(await start(Rig(), policy=sliding(fidelity)))
    for number in range(turns):
        await undisturbed.say(said(number))
    chat = Chat(await start(Rig(), policy=sliding(fidelity)))
    for number in range(middle):
        await chat.say(said(number))
    assert any(chat.changes)
    chat = Chat(await start(Rig(), policy=sliding(fidelity)), chat.session)
    for number in range(middle, turns):
        await chat.say(said(number))
    assert chat.replies == undisturbed.replies[middle:]
    assert chat.visible == undisturbed.visible
    assert chat.usages[0].fidelity == fidelity
    assert chat.usages[0].reused_tokens == 0


async def test_a_history_too_long_to_be_replayed_is_rebuilt_exact_and_told(start):
    chat = Chat(await start(Rig(), policy=sliding("shifted")))
    for number in range(40):
        await chat.say(said(number))
    assert chat.usages[-1].fidelity == "shifted"
    rig = Rig(max_replay_tokens=100)
    chat = Chat(await start(rig, policy=sliding("shifted")), chat.session)
    finished = await chat.say("back again")
    told = [change for changes in chat.changes for change in changes]
    assert [change.reason for change in told] == ["rebuilt_exact"]
    assert (told[0].context, told[0].fidelity) == ("trimmed", "exact")
    assert finished.usage.fidelity == "exact"
    assert finished.text == reply_after(chat.prompt)
    finished = await chat.say("and on")
    assert finished.text == reply_after(chat.prompt)
    assert chat.changes[-1] == []


@pytest.mark.parametrize("fidelity", ["exact", "shifted"])
async def test_a_fork_from_before_a_trim_replies_as_the_whole_would(start, fidelity):
    chat = Chat(await start(Rig(), policy=sliding(fidelity)))
    whole, number = None, 0
    while not any(chat.changes):
        whole = getattr(chat, "visible", None), chat.world.service.live
        tip = number and chat.world.service.live.get(chat.session).tip_id
        await chat.say(said(number))
        number += 1
    ids, _ = whole
    turn, finished = await chat.world.turn(greedy("fork", previous_response_id=tip))
    assert turn.accepted.session_id != chat.session
    prompt = [*ids, *message("user", "fork"), ROLES["assistant"]]
    assert finished.text == reply_after(prompt)
    assert finished.usage.context == "full"


async def test_t19_a_reply_has_exactly_the_tokens_that_were_asked_for(start):
    """Window 1,024, some 900 tokens there, at most 512 wanted, no end of turn drawn."""
    rig = Rig()
    chat = Chat(await start(rig, policy=sliding()))
    rig.model.script([97, 256])
    await chat.say("a" * 410)
    rig.model.script([98, 256])
    await chat.say("b" * 300)
    rig.model.script([120] * 600)
    finished = await chat.say("c" * 150, max_output_tokens=512)
    assert finished.usage.output_tokens == 512
    assert finished.text == "x" * 512
    assert (finished.status, finished.reason) == ("incomplete", "max_output_tokens")
    assert len(chat.visible) <= WINDOW
    await chat.say("d")


@pytest.mark.parametrize("fidelity", ["exact", "shifted"])
async def test_t20_whole_turns_go_and_the_first_kept_token_is_a_turns_header(start, fidelity):
    """The window ends inside turn 3, inside a character of three bytes."""
    rig = Rig()
    chat = Chat(await start(rig, policy=sliding(fidelity)))
    texts = ["one " * 20, "two " * 20, "\u20ac" * 150, "four " * 20, "five " * 20]
    for text in texts:
        await chat.say(text)
    whole = chat.visible
    await chat.say("six " * 40)
    (change,) = chat.changes[-1]
    assert change.reason == "trimmed"
    assert 0 < change.dropped_turns < 5
    assert change.tokens_before == len(whole)
    kept = rendered(
        *(
            (role, text)
            for pair in zip(texts, chat.replies, strict=False)
            for role, text in zip(("user", "assistant"), pair, strict=True)
        )
    )
    dropped = rendered(
        *(
            (role, text)
            for pair in list(zip(texts, chat.replies, strict=False))[: change.dropped_turns]
            for role, text in zip(("user", "assistant"), pair, strict=True)
        )
    )
    assert whole == PREFIX + kept
    assert chat.visible[: change.tokens_after] == PREFIX + kept[len(dropped) :]
    assert chat.visible[len(PREFIX)] == ROLES["user"]


async def test_t21_what_is_dropped_is_told_and_the_system_prompt_is_not(start):
    """Window 2,048, history of 3,000 tokens, a secret in the system prompt."""
    world = await start(Rig(max_model_len=2048), policy=sliding())
    system_prefix = message("system", "the secret is 1234")
    chat = Chat(world)
    await chat.say("hi", instructions="the secret is 1234")
    while sum(usage.new_tokens for usage in chat.usages) < 3000:
        await chat.say("y" * 180, truncation="auto")
        assert chat.visible[: len(system_prefix)] == system_prefix
    told = [change for changes in chat.changes for change in changes]
    assert told
    for change in told:
        assert change.tokens_after >= 2048 // 2, "a few tokens too many do not cost half of it"
        assert change.dropped_turns > 0
    with pytest.raises(RequestError) as error:
        await chat.say("z" * 1700, truncation="disabled")
    assert error.value.code == "context_length_exceeded"


async def test_t16_children_of_a_busy_parent_share_its_blocks(start):
    """Four forks of 7,403 tokens: each computes at most a block beside its own text."""
    rig = Rig(blocks=1024, max_model_len=16384, max_num_batched_tokens=512, idle_prefill=False)
    world = await start(rig)
    rig.model.script([97, 256])
    turn, _ = await world.turn(greedy("p" * (7403 - len(PREFIX) - 7)))
    parent, tip = turn.accepted.session_id, turn.accepted.response_id
    assert len(await world.context(parent)) == 7403
    rig.model.gate = StepGate(1)
    rig.model.script([98] * 500)
    busy = await world.begin(greedy("go on", conversation=parent, max_output_tokens=400))
    with pytest.raises(RequestError) as error:
        await world.bind(greedy("too soon", previous_response_id=busy.accepted.response_id))
    assert error.value.code == "previous_response_not_found"
    copies = len(rig.model.copies)
    children = [
        asyncio.create_task(
            world.turn(greedy(f"{n} is my number", previous_response_id=tip), lane=str(n))
        )
        for n in range(4)
    ]
    turns = world.service.runner.bound_turns
    await until(lambda: len(turns()) == 5 and all(turn.is_followable.is_set() for turn in turns()))
    rig.model.gate.open()
    for number, (turn, finished) in enumerate(await settled(*children)):
        assert turn.accepted.session_id != parent
        text = len(message("user", f"{number} is my number")) + 1
        usage = finished.usage
        assert usage.recomputed_tokens + usage.new_tokens <= 16 + text
        assert usage.input_tokens == 7403 + text
    assert len(rig.model.copies) - copies >= 4  # the tail, for each who writes behind it
    assert (await finish(busy)).text == "b" * 400
