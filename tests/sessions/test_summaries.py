"""Chats under the policy `compaction`, on the real engine loop: what the model sees, to the id."""

import pytest

from engine.ipc.queries import GetStats
from sessiond.domain import PolicyChoice
from sessiond.sessions.summary_writer import QUESTION, REQUEST
from tests.fakes.fake_model import expected_reply
from tests.harness.service import ANN, DEFAULT, ROLES, finish, message
from tests.sessions.long_chat import Chat, said
from tests.sessions.rig import DRAW, Rig, greedy, reply_after

PREFIX = message("system", DEFAULT)
HEAD = [*message("user", QUESTION), ROLES["assistant"]]
CLOSE = [256, 10]
WINDOW = 2048
TOKENS = 128
KEPT = 3
PARAMETERS = {"compact_threshold": 700, "keep_turns": KEPT, "summary_tokens": TOKENS}


def compaction(fidelity="exact", **parameters):
    return PolicyChoice(
        type="compaction", parameters={**PARAMETERS, **parameters}, fidelity=fidelity
    )


def summary_of(visible):
    """The pair that a right model writes of a context, in so many tokens."""
    asked = [*visible, *message("user", REQUEST), ROLES["assistant"]]
    most = TOKENS - len(HEAD) - len(CLOSE)
    reply = expected_reply(asked, draw=DRAW, max_output_tokens=most)
    return [*HEAD, *(token for token in reply if token != 256), *CLOSE]


def rig(**config):
    return Rig(max_model_len=WINDOW, **config)


class Twin:
    """What a chat must look like: whole turns, and the summary that stands for the first ones."""

    def __init__(self):
        self.summary, self.turns = [], []

    @property
    def visible(self):
        return PREFIX + self.summary + [token for turn in self.turns for token in turn]

    def compact(self):
        self.summary = summary_of(self.visible)
        self.turns = self.turns[-KEPT:]

    async def say(self, chat, text, **fields):
        """A turn of both; returns why the context changed, if it did."""
        await chat.idle()
        seen = self.visible
        finished = await chat.say(text, **fields)
        changes = chat.changes[-1]
        if changes:
            self.compact()
        prompt = [*self.visible, *message("user", text), ROLES["assistant"]]
        assert chat.prompt == prompt
        assert finished.text == reply_after(prompt)
        assert finished.usage.summary_tokens == len(self.summary)
        assert finished.usage.context == ("summarized" if self.summary else "full")
        self.turns.append(chat.visible[len(self.visible) :])
        if changes:
            (change,) = changes
            assert (change.tokens_before, change.tokens_after) == (
                len(seen),
                len(self.visible) - len(self.turns[-1]),
            )
            return change.reason
        return None


async def test_t25_the_tail_survives_on_every_turn_after_a_summary(start):
    """Open-webui#27037: the kept turns were there on the first turn after it, then gone."""
    chat, twin = Chat(await start(rig(), policy=compaction())), Twin()
    changed = [await twin.say(chat, said(number)) for number in range(60)]
    at = [number for number, reason in enumerate(changed) if reason]
    assert set(changed) == {None, "summarized"}
    assert len(at) >= 3, "a summary of a summary of a summary"
    assert at[0] + 3 < at[1], "turns 1, 2 and 3 after it were checked"
    assert chat.usages[-1].fidelity == "exact"
    stats = await chat.world.engine.ask(GetStats())
    assert stats.contexts == 1, "no fork is left"
    live = chat.world.service.live.get(chat.session)
    assert live.layout == await chat.world.store.layout("ann", len(PREFIX), live.tip_id)
    assert live.layout.dropped_turns == 60 - len(twin.turns)


async def test_a_summary_is_written_without_computing_the_conversation_again(start):
    world = await start(rig(), policy=compaction())
    chat, twin = Chat(world), Twin()
    while await twin.say(chat, said(len(chat.replies))) is None:
        before = (await world.engine.ask(GetStats())).recomputed_tokens_total
        await chat.idle()
        stats = await world.engine.ask(GetStats())
        assert stats.recomputed_tokens_total == before
    usage = (await world.service.inspector.session(ANN, chat.session)).usage
    told = sum(one.input_tokens for one in chat.usages)
    written = usage.input_tokens - told
    asked = len(message("user", REQUEST)) + 1
    assert usage.output_tokens > sum(one.output_tokens for one in chat.usages)
    cached = usage.cached_tokens - sum(one.cached_tokens for one in chat.usages)
    assert written - cached <= asked + 16, "new: the request, and at most what a tail's copy costs"


@pytest.mark.parametrize("what", ["engine", "server"])
async def test_what_was_lost_is_rebuilt_with_the_summary(start, what):
    undisturbed, twin = Chat(await start(rig(), policy=compaction())), Twin()
    for number in range(40):
        await twin.say(undisturbed, said(number))
    chat, twin = Chat(await start(rig(), policy=compaction())), Twin()
    for number in range(40):
        if number % 9 == 8:
            await chat.idle()
            if what == "server":
                world = await start(rig(), policy=compaction())
                chat.world = world
            else:
                live = chat.world.service.live.get(chat.session)
                chat.world.service.retention.unplace(live)
        await twin.say(chat, said(number))
    assert chat.replies == undisturbed.replies
    assert chat.visible == undisturbed.visible


async def test_a_fork_sees_what_its_response_saw(start):
    world = await start(rig(), policy=compaction())
    chat, twin = Chat(world), Twin()
    tips = []
    while sum(map(bool, chat.changes)) < 2:
        await twin.say(chat, said(len(chat.replies)))
        tips.append((world.service.live.get(chat.session).tip_id, twin.visible))
    first = next(number for number, changes in enumerate(chat.changes) if changes)
    for number in (first - 1, first, first + 1):
        tip, visible = tips[number]
        turn, finished = await world.turn(
            greedy("and there?", previous_response_id=tip, policy=PolicyChoice(type="none"))
        )
        prompt = [*visible, *message("user", "and there?"), ROLES["assistant"]]
        assert finished.text == reply_after(prompt)
        assert finished.usage.context == ("summarized" if number >= first else "full")
        fork = await world.context(turn.accepted.session_id)
        assert fork[: len(prompt)] == prompt


async def test_a_fork_that_must_drop_turns_waits_for_a_summary_of_its_own(start):
    """Its session has no row yet, and the engine holds no context of it."""
    world = await start(rig(), policy=compaction())
    chat, twin = Chat(world), Twin()
    for number in range(12):
        await twin.say(chat, said(number))
    tip, seen = world.service.live.get(chat.session).tip_id, twin.visible
    await twin.say(chat, "the trunk goes on")
    before = (await world.service.inspector.session(ANN, chat.session)).usage
    text = "x" * (WINDOW - len(seen) - 20)  # no room for all turns
    turn = await world.begin(greedy(text, previous_response_id=tip))
    assert (await finish(turn)).usage.context == "summarized"
    fork = turn.accepted.session_id
    assert fork != chat.session
    kept = seen[len(PREFIX) + sum(map(len, twin.turns[: 12 - KEPT])) :]
    visible = [*PREFIX, *summary_of(seen), *kept]
    assert (await world.context(fork))[: len(visible)] == visible
    after = (await world.service.inspector.session(ANN, chat.session)).usage
    assert after.output_tokens > before.output_tokens, "it is told where its turns were made"


@pytest.mark.parametrize("lost", [False, True])
async def test_a_summary_of_a_shifted_context_makes_it_exact(start, lost):
    """Written on a fork of the shifted KV; what follows it is computed from the ids."""
    world = await start(rig(), policy=compaction())
    chat = Chat(world)
    window = PolicyChoice(type="sliding_window", parameters={"max_tokens": 900}, fidelity="shifted")
    while not any(chat.changes):
        await chat.say(said(len(chat.replies)), policy=window)
    assert chat.usages[-1].fidelity == "shifted"
    seen = chat.visible
    if lost:
        world.service.retention.unplace(world.service.live.get(chat.session))
    await chat.say("x" * 300, max_output_tokens=WINDOW - len(seen) - 200)
    assert [change.reason for change in chat.changes[-1]] == ["summarized"]
    for number in range(3):
        assert chat.visible[: len(PREFIX) + len(HEAD)] == PREFIX + HEAD
        tail = chat.prompt[len(PREFIX) + chat.usages[-1].summary_tokens :]
        assert tail[0] == ROLES["user"]
        assert chat.usages[-1].fidelity == "exact"
        assert chat.replies[-1] == reply_after(chat.prompt, len(chat.replies[-1]) or 24)
        await chat.say(said(number))
