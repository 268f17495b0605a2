"""A conversation as its client knows it, and what a calm engine without any cache would reply."""

from dataclasses import dataclass, field

from tests.chaos.engine import DRAW
from tests.fakes.fake_model import FakeText, expected_reply
from tests.gateway.real_stack import ByteFormat

_FORMAT = ByteFormat()
INSTRUCTIONS = "You are the ship's parrot."


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A turn that is in the conversation: it was acknowledged, or found in SQL after a cut."""

    response_id: str
    user: str
    reply: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A turn that was sent. `response_id` None: nothing was heard of it."""

    user: str
    max_output_tokens: int
    response_id: str | None = None


@dataclass(slots=True, kw_only=True)
class Talk:
    """One conversation; its ids are what SQL must have of it.

    The first `inherited` turns are those of another, of which it is a fork: their ids may end with
    it.
    """

    session_id: str
    said: list[Said] = field(default_factory=list)
    inherited: int = 0

    @property
    def tip_id(self) -> str:
        return self.said[-1].response_id

    @property
    def ids(self) -> list[int]:
        ids = list(_FORMAT.open(INSTRUCTIONS))
        for turn in self.said:
            ids += _FORMAT.message("user", turn.user)
            ids += [*_FORMAT.generation_prompt, *turn.reply.encode(), *_FORMAT.close_ids]
        return ids

    def prompt(self, user: str) -> list[int]:
        return [*self.ids, *_FORMAT.message("user", user), *_FORMAT.generation_prompt]

    def right_reply(self, asked: Asked) -> str:
        """The text of the greedy reply."""
        reply = expected_reply(
            self.prompt(asked.user), draw=DRAW, max_output_tokens=asked.max_output_tokens
        )
        return bytes(token for token in reply if token != FakeText.STOP).decode()

    def up_to(self, count: int, session_id: str) -> "Talk":
        """A fork behind the first `count` turns."""
        return Talk(session_id=session_id, said=self.said[:count], inherited=count)
