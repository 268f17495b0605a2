"""A chat is played in contexts that are what their names say, on the native kernels."""

import numpy as np
import pytest

from benchmarks.fidelity.chats import Chat, Exchange, Fact
from benchmarks.fidelity.contexts import Contexts
from benchmarks.fidelity.playing import (
    CONTEXTS,
    EXACT,
    FULL,
    MOVED,
    SHIFTED,
    Language,
    Play,
    pair_name,
)
from engine.config import EngineConfig
from engine.files.spec_reader import read_spec
from engine.ipc.messages import Edit
from engine.model.native import prepare_native_model
from tests.kernels.tiny_model import write_tiny_model
from tests.laws.shifted import ShiftedContext

VOCAB = 203
PREFIX = list(range(100, 121))  # not whole blocks


class KeepsLogits:
    """Keeps the logits of the last step."""

    def __init__(self, runner):
        self._runner = runner

    def execute(self, batch):
        self.rows = self._runner.logits(batch, every_token=True)
        return [int(self.rows[-1].argmax())] * sum(one.sample is not None for one in batch)


class Words:
    """A vocabulary of words, a chat format and a tokenizer at once: ids as the words come up."""

    generation_prompt = [1]
    close_ids = [2, 3]
    stop_ids = [2]

    def __init__(self):
        self._ids = {}

    def open(self):
        return PREFIX

    def message(self, _role, text):
        return [4, *self.encode(text), 2, 3]

    def encode(self, text):
        return [self._ids.setdefault(word, 5 + len(self._ids) % 90) for word in text.split()]

    def decode(self, ids):
        names = {token: word for word, token in self._ids.items()}
        return " ".join(names.get(token, "?") for token in ids)


@pytest.fixture(scope="module")
def model(tmp_path_factory, library_path):
    path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    config = EngineConfig(model=str(path), device="cpu")
    return prepare_native_model(read_spec(path), config, threads=1, library_path=library_path)


@pytest.fixture
def contexts(model):
    return Contexts(model, 200)


def ids(length, seed):
    return np.random.default_rng(seed).integers(5, VOCAB, length).tolist()


def test_exact_is_a_fresh_prefill_of_the_kept_ids(contexts):
    context = contexts.open("a", PREFIX)
    context.feed(ids(90, 0))
    context.restart(len(PREFIX), ids(40, 1))
    fresh = contexts.open("b", [*PREFIX, *ids(40, 1)])
    assert context.ids == fresh.ids
    assert (context.logits(ids(9, 2)) == fresh.logits(ids(9, 2))).all()


def test_shifted_is_the_kv_there_was_at_its_new_place(contexts, model):
    context, runner = contexts.open("a", PREFIX), KeepsLogits(model.runner(40))
    apart = ShiftedContext(runner, 16)
    apart.feed(PREFIX)
    for number in range(3):
        for one in (context, apart):
            one.feed(ids(50, number))
        spans = ((21, 40), (50, 53))
        context.drop(spans)
        apart.edit(Edit(at=len(apart.ids), dropped=spans))
        assert context.ids == apart.ids
        apart.feed(ids(5, 9 + number))
        assert (context.logits(ids(5, 9 + number)) == runner.rows).all()


def test_a_sealed_front_puts_what_follows_in_other_slots_and_changes_no_id(contexts):
    plain = contexts.open("a", PREFIX)
    moved = contexts.open("b", PREFIX, seals_front=True)
    for one in (plain, moved):
        one.feed(ids(60, 0))
        one.restart(len(PREFIX), ids(30, 1))
    assert moved.ids == plain.ids
    ours, theirs = plain.logits(ids(20, 2)), moved.logits(ids(20, 2))
    assert not (ours == theirs).all()
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(ours).max(), "rounding only"


def test_a_question_leaves_no_trace(contexts):
    context, other = contexts.open("a", PREFIX), contexts.open("b", PREFIX)
    reply = context.continued(ids(20, 0), 8, [])
    assert len(reply) == 8
    assert context.continued(ids(20, 0), 8, [reply[3]]) == reply[: reply.index(reply[3])]
    assert (context.logits(ids(9, 2)) == other.logits(ids(9, 2))).all()


@pytest.fixture(scope="module")
def chat():
    """Turns of some 35 tokens, a fact as each third."""
    exchanges = []
    for number in range(24):
        if number % 3 == 0:
            fact = Fact(holder=f"gate{number}", word=f"word{number}")
            exchanges.append(Exchange(user=fact.told, reply=fact.noted, fact=fact))
        else:
            text = " ".join(f"w{(7 * number + i) % 40}" for i in range(13))
            exchanges.append(Exchange(user=text, reply=text))
    return Chat(language="en", dialogues=["made up"], exchanges=exchanges)


@pytest.fixture
def play(contexts, chat):
    words = Words()
    return Play(contexts, Language(form=words, tokenizer=words), chat, number=3, window=300).run()


def test_every_reply_after_the_first_trim_is_compared_but_those_to_facts(play, chat):
    assert play.trims > 3
    spoken = sum(one.fact is None for one in chat.exchanges)
    assert spoken * 0.5 < len(play.turns) < spoken
    assert [row.trims for row in play.turns] == sorted(row.trims for row in play.turns)
    since = {row.since_trim for row in play.turns}
    assert 0 in since
    assert max(since) > 0
    for row in play.turns:
        assert row.tokens == 14, "the reply and its end"
        assert set(row.nats) == set(CONTEXTS)
        assert row.pairs[pair_name((EXACT, SHIFTED))].divergence > 0


def test_moving_a_context_changes_less_than_keeping_old_kv(play):
    def mean(name):
        return np.mean([row.pairs[pair_name((EXACT, name))].divergence for row in play.turns])

    assert mean(MOVED) < mean(SHIFTED)


def test_questions_are_of_the_kept_text_and_of_what_has_just_been_dropped(play):
    assert {row.kept for row in play.probes} == {True, False}
    for word in {row.word for row in play.probes}:
        kept = [row.kept for row in play.probes if row.word == word]
        assert kept == sorted(kept, reverse=True), "kept, then dropped"
        assert kept.count(False) <= 1, "once"
    assert all(set(row.answers) == {EXACT, SHIFTED, MOVED, FULL} for row in play.probes)


def test_a_played_chat_holds_no_block(contexts, play):
    assert play.turns
    assert contexts.pool.active_count == 0
