"""A step that finds no memory is done in parts; only who lacks it alone fails."""

import pytest

from engine.core.oom_split import split_step
from engine.ids import BlockId
from engine.ipc.messages import Sampling, TurnFailed, TurnIncomplete
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import GREEDY, Engine


class Starved:
    """Has memory for so many rows in a step, and none for a sequence that has the token `greedy`.

    Raises after it has written, as a model does that gets as far as its logits.
    """

    def __init__(self, model: object, *, rows: int = 10**9, greedy: int = -2) -> None:
        self.model = model
        self.copy_block = model.copy_block
        self.zero_block = model.zero_block
        self.rows = rows
        self.greedy = greedy

    def execute(self, batch: list) -> list[int]:
        tokens = self.model.execute(batch)
        rows = sum(len(step.token_ids) for step in batch)
        if rows > self.rows or any(self.greedy in step.token_ids for step in batch):
            raise MemoryError(f"{rows} rows")
        return tokens


def starve(engine: Engine, **limits: int) -> None:
    engine.switch.runner = Starved(engine.model, **limits)


def right(engine: Engine, ids: list[int], **fields: object) -> list[int]:
    return expected_reply(ids, draw=engine.draw, max_output_tokens=8, **fields)


def test_only_the_culprit_fails_and_the_others_reply_as_ever(make_engine) -> None:
    engine = make_engine(max_num_batched_tokens=512)
    names = [f"s{number}" for number in range(7)]
    prompts = {name: [number + 1] * 20 for number, name in enumerate(names)}
    prompts["s4"][10] = 200
    for name in names:
        engine.open(name)
    starve(engine, greedy=200)
    turns = {name: engine.submit(name, prompts[name]) for name in names}
    engine.run()
    for name, turn in turns.items():
        if name == "s4":
            failed = engine.ending(turn)
            assert isinstance(failed, TurnFailed)
            assert (failed.code, "memory" in failed.message) == ("internal_error", True)
        else:
            assert engine.kept(turn)[:-2] == right(engine, prompts[name])
    assert engine.view("s4").tokens == 0
    assert engine.stats().memory_shortages_total >= 3
    engine.check()
    starve(engine)
    again = engine.turn("s4", prompts["s4"])
    assert engine.started(again).reused_tokens == 0, "nothing of a failed turn is hit"
    assert engine.kept(again)[:-2] == right(engine, prompts["s4"])


@pytest.mark.parametrize("rows", [1, 5, 16, 63])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_step_that_is_too_large_for_everybody_is_done_in_parts_and_nobody_fails(
    make_engine, rows: int, temperature: float
) -> None:
    engine = make_engine(max_num_batched_tokens=128)
    sampling = Sampling(temperature=temperature, seed=5)
    starve(engine, rows=rows)
    prompts = {"a": [1] * 70, "b": [2] * 33, "c": [3]}
    for name in prompts:
        engine.open(name)
    turns = {name: engine.submit(name, ids, sampling=sampling) for name, ids in prompts.items()}
    engine.run()
    for name, turn in turns.items():
        assert isinstance(engine.ending(turn), TurnIncomplete)
        assert engine.kept(turn)[:-2] == right(engine, prompts[name], sampling=sampling)
    assert engine.stats().memory_shortages_total > 0
    engine.check()


def test_drafts_are_checked_together_in_a_part(make_engine) -> None:
    engine = make_engine(num_speculative_tokens=7)
    engine.open("a")
    starve(engine, rows=8)
    turn = engine.turn("a", list(b"abcd" * 20), max_output_tokens=40, stop_ids=[])
    reply = expected_reply(list(b"abcd" * 20), draw=engine.draw, max_output_tokens=40, stop_ids=())
    assert engine.kept(turn)[:-2] == reply
    engine.check()


def test_a_step_in_advance_of_turns_without_memory_costs_no_session_its_kv(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", [1] * 20)
    engine.step_until(lambda: engine.ending(turn) is not None)
    kept_len, blocks = engine.view("a").kept_len, engine.view("a").blocks
    starve(engine, rows=0)
    engine.run()
    assert (engine.view("a").kept_len, engine.view("a").blocks) == (kept_len, blocks)
    assert engine.stats().memory_shortages_total == 1
    starve(engine)
    ids = list(engine.loop.memory.contexts["a"].ids)
    more = engine.turn("a", [7])
    assert engine.started(more).reused_tokens == kept_len
    assert engine.kept(more)[:-2] == right(engine, [*ids, 7])


def test_another_fault_in_a_part_fails_the_whole_step(engine: Engine) -> None:
    class Fails(Starved):
        def execute(self, batch: list) -> list[int]:
            if len(batch) == 1:
                raise ZeroDivisionError
            return super().execute(batch)

    for name in "ab":
        engine.open(name)
    engine.switch.runner = Fails(engine.model, rows=1)
    turns = [engine.submit(name, [1] * 9) for name in "ab"]
    engine.step()
    assert {engine.ending(turn).code for turn in turns} == {"internal_error"}
    engine.check()


def entry(block: int, first: int, last: int, base: int) -> PageEntry:
    return PageEntry(BlockId(block), first, last, base)


def step(count: int, entries: list[PageEntry], drafts: int | None = None) -> SequenceStep:
    sample = None if drafts is None else SampleAt(sampling=GREEDY, output_index=0, drafts=drafts)
    return SequenceStep(
        token_ids=list(range(count)), first_position=100, entries=entries, sample=sample
    )


def test_the_first_half_ends_where_the_second_begins() -> None:
    entries = [entry(3, 2, 15, 70), entry(4, 0, 15, 86), entry(9, 0, 3, 102)]
    first, second = split_step(step(6, entries, drafts=0))
    assert (first.token_ids, second.token_ids) == ([0, 1, 2], [3, 4, 5])
    assert (first.first_position, second.first_position) == (100, 103)
    assert first.entries == [*entries[:2], entry(9, 0, 0, 102)]
    assert second.entries == entries
    assert first.sample is None
    assert second.sample is not None


def test_a_half_may_end_with_a_block() -> None:
    entries = [entry(4, 0, 15, 86), entry(9, 0, 3, 102)]
    first, _ = split_step(step(8, entries))
    assert first.entries == entries[:1]


@pytest.mark.parametrize(("count", "drafts"), [(1, None), (1, 0), (4, 3)])
def test_rows_that_are_drawn_from_are_not_parted(count: int, drafts: int | None) -> None:
    assert split_step(step(count, [entry(1, 0, 15, 88)], drafts)) == []


def test_drafts_stay_behind_their_token() -> None:
    first, second = split_step(step(10, [entry(1, 0, 15, 94)], drafts=6))
    assert (len(first.token_ids), len(second.token_ids)) == (3, 7)
