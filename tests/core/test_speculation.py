"""Replies that repeat themselves come in fewer steps, and end where they would have ended."""

import pytest

from engine.ipc.messages import Sampling, TurnDelta, TurnFailed, TurnIncomplete
from engine.kv.step import SequenceStep
from tests.fakes.fake_model import FakeModel, FakeText
from tests.harness.loop import Engine

CIRCLE = list(b"round and ")
REPLY = (CIRCLE * 12)[:100]


@pytest.fixture
def engine():
    engine = Engine(num_blocks=64, num_speculative_tokens=6, idle_prefill=False)
    yield engine
    engine.check()


class Recorder(FakeModel):
    """Keeps all steps."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.batches_run: list[list[SequenceStep]] = []

    def execute(self, batch: list[SequenceStep]) -> list[int]:
        self.batches_run.append(list(batch))
        return super().execute(batch)


def recorded(**settings: object) -> Engine:
    models: list[Recorder] = []

    def runner(num_blocks: int, block_size: int) -> Recorder:
        models.append(Recorder(num_blocks, block_size))
        return models[-1]

    engine = Engine(num_blocks=64, runner=runner, idle_prefill=False, **settings)
    engine.model = models[0]
    return engine


def plain(**settings: object) -> Engine:
    return Engine(num_blocks=64, num_speculative_tokens=0, idle_prefill=False, **settings)


def reply(engine: Engine, ids: list[int], **fields: object):
    engine.open("a")
    engine.model.script([*ids, FakeText.STOP])
    return engine.turn("a", b"hello", **({"max_output_tokens": 200} | fields))


def test_a_reply_in_circles_takes_far_fewer_steps(engine):
    turn, slow = reply(engine, REPLY), plain()
    other = reply(slow, REPLY)
    assert engine.kept(turn) == slow.kept(other)
    assert engine.text(turn) == slow.text(other) == bytes(REPLY).decode()
    assert engine.model.steps < slow.model.steps / 2
    stats = engine.stats()
    assert stats.accepted_drafts_total > stats.rejected_drafts_total
    assert stats.generated_tokens_total == slow.stats().generated_tokens_total


def test_a_reply_without_repetition_checks_nothing(engine):
    turn = reply(engine, list(range(32, 127)))
    assert engine.text(turn) == bytes(range(32, 127)).decode()
    assert engine.stats().accepted_drafts_total == 0
    assert engine.stats().rejected_drafts_total == 0


def test_it_can_be_turned_off():
    engine = plain()
    reply(engine, REPLY)
    assert engine.stats().accepted_drafts_total == 0
    assert engine.model.steps == len(REPLY) + 1


@pytest.mark.parametrize("limit", range(40, 60))
def test_a_limit_cuts_a_reply_at_the_same_token(engine, limit):
    turn = reply(engine, REPLY, max_output_tokens=limit)
    ending = engine.ending(turn)
    assert isinstance(ending, TurnIncomplete)
    assert ending.reason == "max_output_tokens"
    assert ending.counts.output_tokens == limit
    assert engine.text(turn) == bytes(REPLY[:limit]).decode()
    assert engine.stats().accepted_drafts_total > 0


@pytest.mark.parametrize("limit", range(60, 80))
def test_a_full_context_cuts_a_reply_at_the_same_token(limit):
    engine = Engine(num_speculative_tokens=6, max_model_len=limit)
    turn = reply(engine, REPLY)
    assert engine.ending(turn).reason == "context_length"
    assert engine.ending(turn).counts.output_tokens == limit - len(b"hello")
    engine.check()


@pytest.mark.parametrize("at", range(40, 60))
def test_a_stop_string_inside_checked_tokens_ends_the_reply_there(engine, at):
    text = bytes([*REPLY[:at], *b"END", *REPLY[:40]])
    turn = reply(engine, list(text), sampling=Sampling(temperature=0, stop=("EN",)))
    assert engine.text(turn) == bytes(REPLY[:at]).decode()
    assert engine.kept(turn)[:-2] == REPLY[:at]
    assert engine.view("a").kept_len <= len(b"hello") + at


@pytest.mark.parametrize("at", range(20, 32))
def test_a_drafted_stop_string_ends_the_reply_at_its_first_place(engine, at):
    prompt = b"A quote of twenty to thirty bytes that goes on"
    engine.open("a")
    engine.model.script(list(prompt))
    stop = prompt[at : at + 4].decode()
    sampling = Sampling(temperature=0, stop=(stop,))
    turn = engine.turn("a", prompt, sampling=sampling, max_output_tokens=100)
    assert engine.text(turn).encode() == prompt[: prompt.index(stop.encode())]
    engine.truncate("a", len(prompt))
    assert engine.view("a").tokens == len(prompt)


def test_tokens_of_one_step_come_as_one_delta_in_order(engine):
    turn = reply(engine, REPLY)
    deltas = [event for event in engine.events[turn] if isinstance(event, TurnDelta)]
    assert sum(delta.tokens for delta in deltas) == len(REPLY)
    assert max(delta.tokens for delta in deltas) > 3
    assert all(delta.tokens == len(delta.text) for delta in deltas)


def test_a_cancelled_reply_keeps_what_was_sent(engine):
    engine.open("a")
    engine.model.script(REPLY)
    turn = engine.submit("a", b"hello", max_output_tokens=200)
    engine.step_until(lambda: engine.stats().accepted_drafts_total > 10)
    engine.cancel(turn)
    assert engine.kept(turn)[:-2] == list(engine.text(turn).encode())
    assert engine.view("a").kept_len <= len(b"hello") + len(engine.text(turn))


def test_no_turn_is_preempted_for_a_draft():
    engine = Engine(num_blocks=8, num_speculative_tokens=6)
    engine.open("idle")
    engine.turn("idle", bytes(range(32, 80)), max_output_tokens=1)  # keeps 4 of 8 blocks
    turn = reply(engine, (CIRCLE * 6)[:58], max_output_tokens=100)  # ends in the other 4
    assert engine.ending(turn) is not None
    assert engine.stats().evictions_total == {}
    assert engine.stats().preemptions_total == 0
    engine.check()


def test_logits_that_are_not_finite_fail_the_turn_beside_drafts(engine):
    engine.open("a")
    engine.model.script(REPLY)
    turn = engine.submit("a", b"hello", max_output_tokens=200)
    engine.step_until(lambda: engine.stats().accepted_drafts_total > 10)
    engine.model.poison_at.add(engine.model.steps + 1)
    engine.run()
    assert isinstance(engine.ending(turn), TurnFailed)
    assert engine.view("a").tokens == 0


# --- what a step was sized for


def test_a_step_has_no_more_rows_than_it_may_with_drafts_too() -> None:
    engine = recorded(num_speculative_tokens=6, max_num_seqs=2, max_num_batched_tokens=4)
    turn = reply(engine, REPLY)
    assert engine.text(turn) == bytes(REPLY).decode()
    rows = [sum(len(step.token_ids) for step in batch) for batch in engine.model.batches_run]
    assert max(rows[4:]) == 4


def test_a_step_draws_no_more_tokens_than_it_was_measured_with() -> None:
    engine = recorded(num_speculative_tokens=3, max_num_seqs=2)
    turns = []
    for session, ids in (("a", b"hello"), ("b", b"world")):
        engine.open(session)
        engine.model.script([*REPLY, FakeText.STOP])
        turns.append(engine.submit(session, ids, max_output_tokens=200))
        engine.step()
    engine.run()
    assert [engine.text(turn) for turn in turns] == [bytes(REPLY).decode()] * 2
    steps = [[step for step in batch if step.sample] for batch in engine.model.batches_run]
    assert max(sum(step.sample.drafts + 1 for step in batch) for batch in steps) == 2 + 3
    engine.check()


def test_nothing_is_drafted_after_an_end_of_turn() -> None:
    engine = recorded(num_speculative_tokens=6)
    engine.open("a")
    for _ in range(3):
        engine.model.script([*CIRCLE, *CIRCLE, *CIRCLE, FakeText.STOP])
        engine.turn("a", b"again", max_output_tokens=200)
    drafts = [step.drafts for batch in engine.model.batches_run for step in batch]
    assert sum(len(some) for some in drafts) > 20
    assert all(FakeText.STOP not in some for some in drafts)
    engine.check()


def test_blocks_that_drafts_filled_are_hashed_as_others_are(engine):
    reply(engine, REPLY)
    pages = engine.view("a").page_table
    assert len(pages) == (len(b"hello") + len(REPLY)) // 16 + 1
    assert [page.hashed for page in pages] == [page.last == 15 for page in pages]


def test_every_draft_counts_as_accepted_or_rejected():
    engine = recorded(num_speculative_tokens=6)
    reply(engine, REPLY)
    stats, steps = engine.stats(), [step for (step,) in engine.model.batches_run]
    assert stats.rejected_drafts_total > 0
    assert stats.generated_tokens_total == len(steps) + stats.accepted_drafts_total
    assert sum(len(step.drafts) for step in steps) == (
        stats.accepted_drafts_total + stats.rejected_drafts_total
    )
    engine.check()
