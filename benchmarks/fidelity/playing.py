"""Plays a chat in a window: the same turns in contexts whose KV is made in different ways."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.fidelity.chats import Chat, Exchange, Fact
from benchmarks.fidelity.contexts import Contexts, PlayedContext
from benchmarks.fidelity.measures import (
    Answer,
    ProbeRow,
    TurnRow,
    answer,
    compare,
    log_probs,
    nats,
)
from engine.text.chat_template import ChatFormat
from engine.text.tokenizer import Tokenizer
from policies.sliding_window import SlidingWindow
from sessiond.sessions.fit import conversation_view, kept
from sessiond.store.context_layout import ContextLayout, Span, dropped_places

EXACT = "exact"
SHIFTED = "shifted"
MOVED = "exact, other slots"  # the same, differing by rounding only: how large that is
FULL = "untrimmed"
CONTEXTS = (EXACT, SHIFTED, MOVED, FULL)
PAIRS = ((EXACT, SHIFTED), (EXACT, MOVED), (FULL, EXACT), (FULL, SHIFTED))
_ANSWER_TOKENS = 24


def pair_name(pair: tuple[str, str]) -> str:
    """A pair in words: the reference first."""
    return " || ".join(pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A model's words: its chat format and its vocabulary."""

    form: ChatFormat
    tokenizer: Tokenizer


class Play:
    """One chat in a window of so many tokens. Rows fill up while it is played."""

    def __init__(
        self, contexts: Contexts, language: Language, chat: Chat, *, number: int, window: int
    ) -> None:
        self.turns: list[TurnRow] = []
        self.probes: list[ProbeRow] = []
        self.trims = 0
        self._form, self._tokenizer = language.form, language.tokenizer
        self._chat, self._number, self._window = chat, number, window
        self._policy = SlidingWindow(max_tokens=window)
        front = self._form.open()
        self._shape = ContextLayout(prefix_tokens=len(front))
        self._told: list[tuple[Span, Fact]] = []
        self._since_trim = 0
        self._contexts: dict[str, PlayedContext] = {
            name: contexts.open(name, front, seals_front=name == MOVED) for name in CONTEXTS
        }

    def run(self) -> "Play":
        """Play all of it.

        Raises:
            RuntimeError: the contexts do not hold the same ids, or a turn fits no window.
        """
        for exchange in self._chat.exchanges:
            self._turn(exchange)
        for context in self._contexts.values():
            context.close()
        return self

    def _turn(self, exchange: Exchange) -> None:
        prompt = [*self._form.message("user", exchange.user), *self._form.generation_prompt]
        reply = self._tokenizer.encode(exchange.reply)
        close = self._form.close_ids
        self._since_trim += 1
        self._make_room(len(prompt), len(reply) + len(close))
        if self.trims and exchange.fact is None:
            self._measure(prompt, [*reply, *close])
        else:
            for context in self._contexts.values():
                context.feed([*prompt, *reply, *close])
        tokens = len(prompt) + len(reply) + len(close)
        self._shape = self._shape.grown(tokens, awaits_reply=False)
        if exchange.fact is not None:
            self._told.append((self._shape.turns[-1], exchange.fact))

    def _make_room(self, prompt_tokens: int, output_tokens: int) -> None:
        before = self._shape
        view = conversation_view(
            before,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            limit_tokens=self._window,
        )
        self._shape = after = kept(before, self._policy.plan(view))
        if after.tokens + prompt_tokens + output_tokens > self._window:
            raise RuntimeError(f"a turn of {prompt_tokens + output_tokens} tokens fits no window")
        if after.turns == before.turns:
            return
        self.trims += 1
        self._since_trim = 0
        front = after.prefix_tokens
        self._contexts[SHIFTED].drop(dropped_places(before, after))
        kept_ids = self._contexts[SHIFTED].ids[front:]
        for name in (EXACT, MOVED):
            self._contexts[name].restart(front, kept_ids)
        self._ask_all(before, after)

    def _measure(self, prompt: Sequence[int], reply: Sequence[int]) -> None:
        """Compare predictions of the reply's tokens and its end; all of it joins the contexts."""
        close = len(self._form.close_ids) - 1  # behind the end of turn, which is predicted, too
        fed, following = [prompt[-1], *reply[: -close - 1]], reply[: len(reply) - close]
        found = {}
        for name, context in self._contexts.items():
            context.feed(prompt[:-1])
            found[name] = log_probs(context.logits(fed))
            context.feed(reply[len(fed) - 1 :])
        if len({tuple(self._contexts[name].ids) for name in (EXACT, SHIFTED, MOVED)}) > 1:
            raise RuntimeError("the contexts do not hold the same ids")
        self.turns.append(
            TurnRow(
                chat=self._number,
                language=self._chat.language,
                trims=self.trims,
                since_trim=self._since_trim,
                tokens=len(following),
                pairs={pair_name((a, b)): compare(found[a], found[b]) for a, b in PAIRS},
                nats={name: nats(rows, following) for name, rows in found.items()},
            )
        )

    def _ask_all(self, before: ContextLayout, after: ContextLayout) -> None:
        """Ask for what the kept text tells, and for what has just been dropped."""
        for span, fact in self._told:
            if span in before.turns:
                self.probes.append(
                    ProbeRow(
                        chat=self._number,
                        language=self._chat.language,
                        trims=self.trims,
                        kept=span in after.turns,
                        word=fact.word,
                        answers=self._ask(fact),
                    )
                )

    def _ask(self, fact: Fact) -> Mapping[str, Answer]:
        """Ask every context; none of them remembers that."""
        question = [*self._form.message("user", fact.question), *self._form.generation_prompt]
        *start, last = [*question, *self._tokenizer.encode(fact.answer_start)]
        word, *more = self._tokenizer.encode(f" {fact.word}")
        if more:
            raise RuntimeError(f"{fact.word!r} is more than one token in this model's vocabulary")
        answers = {}
        for name, context in self._contexts.items():
            length = len(context.ids)
            reply = context.continued(question, _ANSWER_TOKENS, self._form.stop_ids)
            context.feed(start)
            (found,) = log_probs(context.logits([last]))
            context.cut(length)
            said = fact.word in self._tokenizer.decode(reply).lower()
            answers[name] = answer(found, word, said=said)
        return answers
