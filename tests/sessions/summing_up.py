"""A conversation whose policy sums up its older turns."""

import msgspec
import pytest

from engine.ipc.messages import SubmitTurn
from sessiond.domain import PolicyChoice
from sessiond.sessions.summary_writer import QUESTION, REQUEST
from tests.harness.service import (
    ROLES,
    World,
    ask,
    entries,
    message,
    until,
)
from tests.ipc.loops import INFO
from tests.sessions.fake_engine import FakeEngine
from tests.sessions.trimmed import changes

LIMIT = 4096
TOKENS = 100
KEPT = 2
POLICY = PolicyChoice(
    type="compaction",
    parameters={"compact_threshold": 500, "keep_turns": KEPT, "summary_tokens": TOKENS},
)
ASKED = [*message("user", REQUEST), ROLES["assistant"]]
HEAD = [*message("user", QUESTION), ROLES["assistant"]]
CLOSE = [256, 10]
TEXT = "x" * 80


def is_summary(command):
    return command.session.startswith("sum_")


class Talk:
    """A chat whose next turn will want a summary, and what is written of it."""

    def __init__(self, url, engine, **limits):
        self.url, self.engine, self.limits = url, engine, limits
        self.session = None

    async def open(self):
        self.world = await World.start(self.url, self.engine, policy=POLICY, **self.limits)
        return self

    async def say(self, text=TEXT, **fields):
        """What was told of a turn."""
        return await entries(await self.begin(text, **fields))

    async def begin(self, text=TEXT, **fields):
        turn = await self.world.begin(ask(text, conversation=self.session, **fields))
        self.session = turn.accepted.session_id
        return turn

    async def need_room(self, **fields):
        """A turn that does not fit without dropping others."""
        return await self.begin(max_output_tokens=3600, **fields)

    async def grow(self):
        """Until one more turn of this length would be past the threshold."""
        while len(self.visible) <= 420:
            await self.say()

    @property
    def visible(self):
        return self.engine.contexts.get(self.session, [])

    @property
    def submitted(self):
        return [command for command in self.engine.sent(SubmitTurn) if is_summary(command)]

    async def writing(self):
        """The turn that writes a summary, once it has been submitted."""
        await until(lambda: any(map(is_summary, self.open_turns)))
        return next(filter(is_summary, self.open_turns)).turn

    @property
    def open_turns(self):
        return [self.engine.turns[turn].command for turn in self.engine.running()]

    def write(self, turn, text="all of it"):
        self.engine.begin(turn)
        self.engine.say(turn, text)
        self.engine.finish(turn)

    async def idle(self):
        await until(lambda: self.world.service.compaction.is_idle)

    def assert_nothing_left(self):
        assert not any(map(is_summary, self.open_turns))
        assert not [session for session in self.engine.contexts if session.startswith("sum_")]


def pair(text="all of it"):
    return [*HEAD, *text.encode(), *CLOSE]


def reasons(told):
    return [change.reason for change in changes(told)]


@pytest.fixture
def engine():
    engine = FakeEngine(
        msgspec.structs.replace(INFO, max_model_len=LIMIT, total_blocks=LIMIT // 16)
    )
    engine.by_hand = is_summary
    return engine


@pytest.fixture
async def talk(url, engine):
    talk = await Talk(url, engine).open()
    yield talk
    await talk.world.stop()
    talk.assert_nothing_left()


@pytest.fixture
async def talk_of(url, engine):
    talks = []

    async def make(**limits):
        talks.append(await Talk(url, engine, **limits).open())
        return talks[-1]

    yield make
    for talk in talks:
        await talk.world.stop()
        talk.assert_nothing_left()
