"""A conversation as its client knows it, and what a calm engine without any cache would reply."""

from dataclasses import dataclass, field, replace

from engine.ipc.messages import Edit, Sampling
from tests.chaos.engine import BLOCK_SIZE, DRAW
from tests.fakes.fake_model import FakeModel, FakeText, expected_reply
from tests.harness.stack import ByteFormat
from tests.laws.shifted import ShiftedContext

GREEDY = Sampling(temperature=0)
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
    it. With `last_turns` a new turn sees that many before it, and no more.
    """

    session_id: str
    said: list[Said] = field(default_factory=list)
    inherited: int = 0
    last_turns: int | None = None
    fidelity: str = "exact"
    hints: dict[str, str] = field(default_factory=dict)

    @property
    def tip_id(self) -> str:
        return self.said[-1].response_id

    @property
    def policy(self) -> list[dict]:
        """What each request says of the context."""
        if self.last_turns is None:
            return [{"type": "none"}]
        kind = {"type": "last_turns", "turns": self.last_turns, "trim_to": 1}
        return [{**kind, "fidelity": self.fidelity}]

    @property
    def is_trimmed(self) -> bool:
        """Whether the next turn sees less than was said."""
        return self.last_turns is not None and len(self.said) > self.last_turns

    @property
    def ids(self) -> list[int]:
        ids = list(_FORMAT.open(INSTRUCTIONS))
        for turn in self.said[-self.last_turns :] if self.last_turns else self.said:
            ids += _turn_ids(turn)
        return ids

    def prompt(self, user: str) -> list[int]:
        return [*self.ids, *_FORMAT.message("user", user), *_FORMAT.generation_prompt]

    def right_reply(self, asked: Asked) -> str:
        """The text of the greedy reply."""
        if self.last_turns is not None and self.fidelity == "shifted":
            return self._shifted_reply(asked)
        reply = expected_reply(
            self.prompt(asked.user), draw=DRAW, max_output_tokens=asked.max_output_tokens
        )
        return bytes(token for token in reply if token != FakeText.STOP).decode()

    def _shifted_reply(self, asked: Asked) -> str:
        """What is dropped leaves the sight of later tokens only: so all turns are told again."""
        system_prefix = _FORMAT.open(INSTRUCTIONS)
        turns = [_turn_ids(turn) for turn in self.said]
        blocks = sum(map(len, turns)) // BLOCK_SIZE + len(turns) + len(self.prompt(asked.user))
        model = FakeModel(num_blocks=blocks, block_size=BLOCK_SIZE, draw=DRAW)
        context = ShiftedContext(model, BLOCK_SIZE)
        context.feed(system_prefix)
        sizes: list[int] = []
        for ids in turns:
            sizes = self._drop_old(context, len(system_prefix), sizes)
            context.feed(ids)
            sizes.append(len(ids))
        self._drop_old(context, len(system_prefix), sizes)
        prompt = [*_FORMAT.message("user", asked.user), *_FORMAT.generation_prompt]
        reply = context.reply(prompt, GREEDY, FakeText.STOP, asked.max_output_tokens, [])
        return bytes(reply).decode()

    def _drop_old(self, context: ShiftedContext, system_prefix: int, sizes: list[int]) -> list[int]:
        """Drop those before the last turns; returns how long the kept ones are."""
        kept = sizes[-self.last_turns :]
        if gone := sum(sizes) - sum(kept):
            context.edit(
                Edit(at=len(context.ids), dropped=((system_prefix, system_prefix + gone),))
            )
        return kept

    def up_to(self, count: int, session_id: str) -> "Talk":
        """A fork behind the first `count` turns."""
        return replace(
            self, session_id=session_id, said=self.said[:count], inherited=count, hints={}
        )


def _turn_ids(turn: Said) -> list[int]:
    said = _FORMAT.message("user", turn.user)
    return [*said, *_FORMAT.generation_prompt, *turn.reply.encode(), *_FORMAT.close_ids]
