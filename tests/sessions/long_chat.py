"""One conversation on the real engine loop, turn by turn."""

from sessiond.domain import ContextChanged
from tests.harness.service import entries, until
from tests.sessions.rig import greedy


class Chat:
    """One conversation. Of each turn: its text, what was told of it, what it left visible."""

    def __init__(self, world, session=None):
        self.world = world
        self.session = session
        self.replies, self.changes, self.usages = [], [], []

    async def say(self, text, **fields):
        turn = await self.world.begin(greedy(text, conversation=self.session, **fields))
        self.session = turn.accepted.session_id
        told = await entries(turn)
        assert told[-1].status != "failed", told[-1].error
        self.changes.append([entry for entry in told if isinstance(entry, ContextChanged)])
        self.replies.append(told[-1].text)
        self.usages.append(told[-1].usage)
        self.visible = await self.world.context(self.session)
        return told[-1]

    async def idle(self):
        """Until nothing is written in the background any more."""
        await until(lambda: self.world.service.compaction.is_idle)

    @property
    def prompt(self):
        """What the last turn saw before its reply."""
        return self.visible[: self.usages[-1].input_tokens]


def said(number):
    return f"turn {number} " + "x" * (number * 7 % 23)
