"""What is played: the workloads, and the messages that every server gets. Pure, deterministic."""

import random
from dataclasses import dataclass

# Words that are one token each in the default model's vocabulary, a space before them included.
_OPENINGS = ("The old", "A young", "Every", "Another", "The last", "One small", "The first", "No")
_PEOPLE = ("man", "woman", "child", "farmer", "doctor", "captain", "teacher", "king", "artist")
_ACTS = ("found", "lost", "painted", "carried", "moved", "built", "bought", "read", "saw", "left")
_THINGS = ("the boat", "a map", "two books", "the clock", "a letter", "some bread", "the gold")
_PLACES = ("near the river", "in the garden", "by the sea", "on the hill", "under the bridge")
_TIMES = ("in winter", "at night", "after the rain", "before the war", "every morning", "in May")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sessions that talk at once, each turn after the reply to the one before (and a pause).

    A user's message is about `message_tokens` long, a reply exactly `reply_tokens`.
    """

    name: str
    sessions: int
    turns: int
    message_tokens: int
    reply_tokens: int
    think_s: float = 0.0

    @property
    def context_tokens(self) -> int:
        """More than a session's whole context: with a system prompt and the template's words."""
        per_turn = self.message_tokens + self.reply_tokens + 16
        return 64 + self.turns * per_turn


W1 = Workload(name="W1", sessions=1, turns=8, message_tokens=100, reply_tokens=64)
W2 = Workload(name="W2", sessions=8, turns=6, message_tokens=100, reply_tokens=64)
W2_THINK = Workload(
    name="W2-think", sessions=8, turns=6, message_tokens=100, reply_tokens=64, think_s=3.0
)
W3 = Workload(name="W3", sessions=32, turns=4, message_tokens=200, reply_tokens=32)
W4 = Workload(name="W4", sessions=1, turns=18, message_tokens=410, reply_tokens=16)
QUICK = Workload(name="quick", sessions=2, turns=2, message_tokens=40, reply_tokens=8)
WORKLOADS = {workload.name: workload for workload in (W1, W2, W2_THINK, W3, W4, QUICK)}


def message(seed: str, session: int, turn: int, tokens: int) -> str:
    """A user's message of about so many tokens.

    The same for every server; another one in each session, turn and repetition (`seed`), so that
    no server has seen any of it before.
    """
    draw = random.Random(f"{seed}/{session}/{turn}")  # noqa: S311 -- no secret
    task = f"Go on with story {draw.randrange(10_000)}."
    words = len(task.split()) + 5  # digits are tokens of their own
    sentences = [task]
    while words < tokens - 5:
        sentence = _sentence(draw)
        sentences.append(sentence)
        words += len(sentence.split()) + 1  # the full stop
    return " ".join(sentences)


def _sentence(draw: random.Random) -> str:
    parts = (_OPENINGS, _PEOPLE, _ACTS, _THINGS, _PLACES, _TIMES)
    return " ".join(draw.choice(part) for part in parts) + "."
