"""Long chats out of real dialogues, with code words planted in them. Deterministic by a seed.

No dialogue of the sets is long enough to outgrow a window by itself, so a chat is several of one
language, whole, one after the other, none of them twice. A set that runs out begins anew, in
another order: then chats have dialogues in common, in other company.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

DIALOGUES = Path(__file__).parents[2] / "tests" / "data" / "dialogues"
LONGEST_EXCHANGE = 400  # tokens; longer ones are left out

_HOLDERS = (
    "north gate", "old library", "blue boat", "night train", "glass tower", "south bridge",
    "red lamp", "stone mill", "green door", "quiet harbor", "west wing", "high terrace",
)  # fmt: skip
WORDS = (
    "candle", "marble", "pepper", "silver", "falcon", "violet", "copper", "lemon", "anchor",
    "velvet", "cactus", "rocket",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A code word that a chat mentions, and the question for it."""

    holder: str
    word: str

    @property
    def told(self) -> str:
        """The user's message."""
        return f"Please keep this in mind: the code word for the {self.holder} is {self.word}."

    @property
    def noted(self) -> str:
        """The reply to it."""
        return f"I will keep it in mind: the code word for the {self.holder} is {self.word}."

    @property
    def question(self) -> str:
        """The user's question, later."""
        return f"What is the code word for the {self.holder}?"

    @property
    def answer_start(self) -> str:
        """The reply up to the word, which follows behind a blank."""
        return f"The code word for the {self.holder} is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A user's message and its reply. `fact`: it is not of the dialogue but planted."""

    user: str
    reply: str
    fact: Fact | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One long conversation, and the ids of the dialogues that it is made of."""

    language: str
    dialogues: Sequence[str]
    exchanges: Sequence[Exchange]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """What is built: so many chats, each of at least so many tokens, a fact each so many turns."""

    chats: int
    tokens: int
    seed: int
    fact_every: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialogue:
    id: str
    exchanges: Sequence[Exchange]
    tokens: int


def load_chats(folder: Path, plan: ChatPlan, count_tokens: Callable[[str], int]) -> list[Chat]:
    """Chats out of the `*.jsonl` files of a folder, the languages in turn.

    Raises:
        ValueError: there is no dialogue with replies, or a language has too little for one chat.
    """
    lines = [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    by_language: dict[str, list[_Dialogue]] = {}
    for line in lines:
        found = _dialogue(line["id"], line["turns"], count_tokens)
        if found.exchanges:
            by_language.setdefault(line["lang"], []).append(found)
    if not by_language:
        raise ValueError(f"{folder} has no dialogues with replies")
    return _deal(by_language, plan)


def exchanges_of(
    turns: Sequence[Mapping[str, str]], count_tokens: Callable[[str], int]
) -> Iterator[Exchange]:
    """Each message of a user that is followed by a reply, with it, unless they are too long."""
    for user, reply in pairwise(turns):
        if (user["role"], reply["role"]) == ("user", "assistant"):
            exchange = Exchange(user=user["text"], reply=reply["text"])
            if count_tokens(exchange.user) + count_tokens(exchange.reply) <= LONGEST_EXCHANGE:
                yield exchange


def planted(exchanges: Sequence[Exchange], every: int, draw: random.Random) -> list[Exchange]:
    """The exchanges with a fact before the first and after each `every` of them.

    No holder and no word stands for two facts until all have been used.
    """
    facts = _facts(draw)
    mixed: list[Exchange] = []
    for index, exchange in enumerate(exchanges):
        if index % every == 0:
            fact = next(facts)
            mixed.append(Exchange(user=fact.told, reply=fact.noted, fact=fact))
        mixed.append(exchange)
    return mixed


def _facts(draw: random.Random) -> Iterator[Fact]:
    pairs: dict[str, str] = {}
    while True:
        holders = draw.sample(_HOLDERS, len(_HOLDERS))
        words = draw.sample(WORDS, len(WORDS))
        if any(pairs.get(one) == word for one, word in zip(holders, words, strict=True)):
            continue
        pairs = dict(zip(holders, words, strict=True))
        yield from (Fact(holder=holder, word=word) for holder, word in pairs.items())


def _dialogue(
    name: str, turns: Sequence[Mapping[str, str]], count_tokens: Callable[[str], int]
) -> _Dialogue:
    exchanges = list(exchanges_of(turns, count_tokens))
    tokens = sum(count_tokens(one.user) + count_tokens(one.reply) for one in exchanges)
    return _Dialogue(id=name, exchanges=exchanges, tokens=tokens)


def _deal(by_language: Mapping[str, Sequence[_Dialogue]], plan: ChatPlan) -> list[Chat]:
    draws = {one: random.Random(f"{plan.seed}/{one}") for one in by_language}  # noqa: S311 -- no secret
    stacks: dict[str, list[_Dialogue]] = {one: [] for one in by_language}
    languages = sorted(by_language)
    chats: list[Chat] = []
    for index in range(plan.chats):
        language = languages[index % len(languages)]
        draw, every = draws[language], by_language[language]
        taken = _take(stacks[language], every, plan.tokens, draw)
        exchanges = [one for dialogue in taken for one in dialogue.exchanges]
        chats.append(
            Chat(
                language=language,
                dialogues=[dialogue.id for dialogue in taken],
                exchanges=planted(exchanges, plan.fact_every, draw),
            )
        )
    return chats


def _take(
    stack: list[_Dialogue], every: Sequence[_Dialogue], tokens: int, draw: random.Random
) -> list[_Dialogue]:
    if sum(one.tokens for one in every) < tokens:
        raise ValueError(f"{tokens} tokens are more than all dialogues of a language have")
    taken: list[_Dialogue] = []
    while sum(one.tokens for one in taken) < tokens:
        fresh = [one for one in stack if one not in taken]
        if not fresh:
            stack += draw.sample(every, len(every))
            continue
        stack.remove(fresh[0])
        taken.append(fresh[0])
    return taken
