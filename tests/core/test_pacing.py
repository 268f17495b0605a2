"""The loop beside a clock: gaps stay bounded, newcomers start at once, nothing is done twice."""

from collections.abc import Sequence

import pytest

from engine.core.step_cost import NO_LOAD, StepCost, StepLoad, StepPrice
from engine.ids import TurnId
from engine.ipc.messages import TurnIncomplete
from engine.kv.step import SequenceStep
from tests.fakes.fake_model import FakeModel, expected_reply
from tests.harness.loop import Engine

PRICE = StepPrice(2.4e-3, 4e-4, 6e-7, 2.7e-7)
ENDLESS = {"max_output_tokens": 2000, "stop_ids": []}


class TimedModel(FakeModel):
    """Each step takes what its load costs; `spans` are the steps' durations and loads."""

    def attach(self, engine: Engine, price: StepPrice) -> None:
        self.engine, self.price = engine, price
        self.spans: list[tuple[float, StepLoad]] = []
        self.hiccup_s = 0.0

    def execute(self, batch: Sequence[SequenceStep]) -> list[int]:
        load = NO_LOAD
        for step in batch:
            load += StepLoad.of(step.first_position, len(step.token_ids))
        seconds = self.price.seconds(load) + self.hiccup_s
        self.hiccup_s = 0.0
        self.engine.clock.advance(seconds)
        self.spans.append((seconds, load))
        return super().execute(batch)


@pytest.fixture
def make_timed(make_engine):
    def make(price: StepPrice = PRICE, **config: object) -> Engine:
        models: list[TimedModel] = []

        def runner(num_blocks: int, size: int) -> TimedModel:
            models.append(TimedModel(num_blocks=num_blocks, block_size=size, draw=None))
            return models[-1]

        engine = make_engine(
            num_blocks=4000,
            runner=runner,
            **({"idle_prefill": False, "num_speculative_tokens": 0} | config),
        )
        engine.clock.tick_s = 0
        engine.model = models[0]
        engine.model.attach(engine, price)
        return engine

    return make


def streams(engine: Engine, count: int) -> list[TurnId]:
    turns = []
    for number in range(count):
        engine.open(f"s{number}")
        ids = [number + 1] * 200
        turns.append(engine.submit(f"s{number}", ids, **ENDLESS))
    engine.step_until(lambda: all(engine.text(turn) for turn in turns))
    engine.step(10 if turns else 0)
    engine.model.spans.clear()
    return turns


def prompt(number: int, length: int) -> list[int]:
    return [(number * 7919 + at * at) % 251 for at in range(length)]


def submit(engine: Engine, session: str, ids: list[int], **fields: object) -> TurnId:
    engine.open(session)
    return engine.submit(session, ids, **fields)


def said(engine: Engine, turn: TurnId) -> bool:
    return bool(engine.text(turn))


def longest_s(engine: Engine) -> float:
    return max(seconds for seconds, _ in engine.model.spans)


@pytest.mark.parametrize("factor", [0.2, 1, 1.5])
@pytest.mark.parametrize("count", [1, 31])
def test_a_long_prompt_does_not_hold_up_the_streams(make_timed, count: int, factor: float) -> None:
    price = StepPrice(
        PRICE.base_s * factor,
        PRICE.row_s * factor,
        PRICE.kv_token_s * factor,
        PRICE.pair_s * factor,
    )
    engine = make_timed(price)
    streams(engine, count)
    turn = submit(engine, "long", prompt(1, 6000))
    engine.step_until(lambda: said(engine, turn))
    assert longest_s(engine) <= 0.101
    if factor * count < 31:  # time is left: it is used
        spans = [seconds for seconds, _ in engine.model.spans[1:-10]]
        assert sorted(spans)[len(spans) // 2] > 0.07 or len(spans) < 14


def test_drafts_beside_a_prompt_keep_to_the_bound(make_timed) -> None:
    engine = make_timed(num_speculative_tokens=7)
    turns = []
    for number in range(6):
        engine.model.script([1, 2, 3, 4, 5, 6, 7, 8] * 200)
        turns.append(submit(engine, f"s{number}", [number + 10] * 200, **ENDLESS))
        engine.step_until(lambda: said(engine, turns[-1]))
    long = submit(engine, "long", prompt(1, 30_000))
    engine.step_until(lambda: engine.view("long").kept_len > 8_000)
    engine.model.spans.clear()
    engine.step(40)
    assert longest_s(engine) <= 0.101
    engine.cancel(long)
    before = engine.stats().accepted_drafts_total
    engine.step(20)
    assert engine.stats().accepted_drafts_total > before, "there were guesses"
    for turn in turns:
        engine.cancel(turn)


def test_a_crowd_of_prompts_may_stretch_a_step_by_half(make_timed) -> None:
    engine = make_timed()
    streams(engine, 8)
    turns = [submit(engine, f"p{number}", prompt(number, 600)) for number in range(12)]
    engine.step(12)
    assert 0.13 < longest_s(engine) <= 0.151
    for turn in turns:
        engine.cancel(turn)


def test_the_loop_notes_the_load_that_the_model_was_given(make_timed, monkeypatch) -> None:
    engine = make_timed()
    noted: list[StepLoad] = []
    monkeypatch.setattr(StepCost, "note", lambda _, load, seconds: noted.append(load))
    for length in (1, 50, 300):
        submit(engine, f"s{length}", prompt(length, length))
    engine.run()
    assert noted == [load for _, load in engine.model.spans]


def test_a_step_that_is_held_up_does_not_change_the_pace_for_long(make_timed) -> None:
    engine = make_timed()
    streams(engine, 8)
    turn = submit(engine, "long", prompt(1, 20_000))
    engine.step(10)
    before = engine.model.spans[-1][1].rows
    engine.model.hiccup_s = 3.0
    engine.step(5)
    assert engine.model.spans[-1][1].rows > before / 2
    engine.cancel(turn)


def test_a_machine_a_hundred_times_slower_is_known_after_one_small_step(make_timed) -> None:
    price = StepPrice(0.24, 0.04, 6e-5, 2.7e-5)
    engine = make_timed(price, target_inter_token_ms=2000)
    turn = submit(engine, "long", prompt(1, 2000))
    engine.step_until(lambda: said(engine, turn))
    assert engine.model.spans[0][1].rows == 64
    assert max(seconds for seconds, _ in engine.model.spans[1:]) < 8.5, "four targets"


@pytest.mark.parametrize("busy", [0, 20])
def test_a_short_turn_starts_within_a_step_of_a_long_prompt(make_timed, busy: int) -> None:
    engine = make_timed()
    streams(engine, busy)
    long = submit(engine, "long", prompt(1, 20_000))
    engine.step(20)
    engine.model.spans.clear()
    short = submit(engine, "short", prompt(2, 40))
    engine.step()
    assert engine.started(short) is not None
    engine.step_until(lambda: said(engine, short))
    assert len(engine.model.spans) <= (3 if busy else 1)
    assert longest_s(engine) <= 0.11
    assert not said(engine, long)
    engine.cancel(long)


def test_a_long_prompt_ends_however_many_short_ones_come(make_timed) -> None:
    engine = make_timed()
    long = submit(engine, "long", prompt(0, 3000))
    number = 0

    def flood() -> bool:
        nonlocal number
        for _ in range(3):
            number += 1
            submit(engine, f"f{number}", prompt(number, 90), max_output_tokens=1)
        return said(engine, long)

    engine.step_until(flood, limit=120)
    engine.run()


def test_a_short_turn_is_admitted_though_long_ones_wait_before_it(make_timed) -> None:
    engine = make_timed()
    turns = [submit(engine, f"l{i}", prompt(i, 5000)) for i in range(4)]
    short = submit(engine, "short", prompt(9, 60))
    engine.step(2)
    assert said(engine, short)
    assert not any(said(engine, turn) for turn in turns)
    for turn in turns:
        engine.cancel(turn)


# --- shared prefixes


def test_turns_that_start_together_compute_their_common_prefix_once(make_timed) -> None:
    engine = make_timed()
    shared = prompt(1, 800)
    prompts = [shared + prompt(10 + i, 50) for i in range(12)]
    turns = [submit(engine, f"s{i}", ids) for i, ids in enumerate(prompts)]
    engine.run()
    assert engine.model.computed_tokens == 800 + 12 * (50 + 7)
    for turn, ids in zip(turns, prompts, strict=True):
        assert engine.kept(turn)[:8] == expected_reply(ids, draw=engine.draw, max_output_tokens=8)
    told = [engine.started(turn) for turn in turns]
    assert [event.reused_tokens for event in told] == [0, *[800] * 11]
    assert [event.new_tokens for event in told] == [850, *[50] * 11]
    for turn, event in zip(turns, told, strict=True):
        counts = engine.ending(turn).counts
        assert (counts.reused_tokens, counts.new_tokens) == (event.reused_tokens, event.new_tokens)
    assert engine.stats().new_tokens_total == 800 + 12 * 50


def test_another_tenants_turn_computes_the_same_prefix_itself(make_timed) -> None:
    engine = make_timed()
    for session, salt in (("a", b"one"), ("b", b"two")):
        engine.open(session, salt=salt)
    turns = [engine.submit(session, prompt(1, 30)) for session in "ab"]
    engine.step()
    assert all(engine.started(turn) for turn in turns)
    engine.run()
    assert engine.model.computed_tokens == 2 * (30 + 7)


@pytest.mark.parametrize("end", ["cancelled", "closed", "failed", "truncated"])
def test_a_follower_goes_on_alone_when_the_one_it_follows_is_gone(make_timed, end: str) -> None:
    engine = make_timed()
    ids = prompt(1, 2000)
    leader, follower = submit(engine, "a", ids), submit(engine, "b", ids[:1900])
    engine.step(4)
    assert engine.started(follower) is None
    match end:
        case "cancelled":
            engine.cancel(leader, keep=False)
        case "closed":
            engine.close("a")
        case "truncated":
            engine.truncate("a", 0)
        case _:
            engine.model.fail_at.add(engine.model.steps + 1)
            engine.step()
    engine.step()
    assert engine.started(follower) is not None
    engine.run()
    assert engine.kept(follower)[:8] == expected_reply(
        ids[:1900], draw=engine.draw, max_output_tokens=8
    )


def test_a_short_follower_does_not_wait_for_the_rest_of_a_long_prompt(make_timed) -> None:
    engine = make_timed()
    old = submit(engine, "old", prompt(0, 20_000))
    shared = prompt(1, 320)
    leader = submit(engine, "leader", shared + prompt(2, 15_000))
    engine.step(2)
    short = submit(engine, "short", shared + prompt(3, 30))
    engine.step_until(lambda: said(engine, short), limit=5)
    assert engine.started(short).reused_tokens == 320
    for turn in (old, leader):
        engine.cancel(turn)


@pytest.mark.parametrize("num_blocks", [12, 20, 33])
def test_followers_and_leaders_end_in_a_small_pool(make_engine, num_blocks: int) -> None:
    engine = make_engine(num_blocks=num_blocks, block_size=4, max_num_batched_tokens=40)
    shared = prompt(1, 17)
    prompts = [shared[: 17 - i % 3] + prompt(2 + i // 2, 6) for i in range(10)]
    turns = [
        submit(engine, f"s{i}", ids, max_output_tokens=16, stop_ids=[])
        for i, ids in enumerate(prompts)
    ]
    engine.run(2000)
    for turn, ids in zip(turns, prompts, strict=True):
        assert engine.kept(turn)[:-2] == expected_reply(
            ids, draw=engine.draw, max_output_tokens=16, stop_ids=()
        )


# --- clients that leave


@pytest.mark.parametrize("where", ["queued", "prefilling", "decoding"])
def test_who_leaves_beside_31_streams_takes_no_further_step(make_timed, where: str) -> None:
    engine = make_timed(max_num_seqs=32)
    others = streams(engine, 31)
    idle = engine.stats().active_blocks
    if where == "queued":
        submit(engine, "seat", prompt(5, 30), **ENDLESS)
        engine.step(4)
    turn = submit(engine, "leaver", prompt(1, 64 if where == "decoding" else 9000), **ENDLESS)
    engine.step(4)
    if where == "decoding":
        engine.step_until(lambda: said(engine, turn))
    assert (engine.started(turn) is None) == (where == "queued")
    engine.model.spans.clear()
    grown = sum(len(engine.text(other)) for other in others)
    engine.cancel(turn, keep=False, reason="disconnected")
    ending = engine.ending(turn)
    assert isinstance(ending, TurnIncomplete)
    assert ending.rolled_back
    assert engine.view("leaver").blocks == 0
    assert engine.stats().active_blocks <= idle + 40, "what the others have grown by"
    engine.step()
    rows = engine.model.spans[-1][1].rows
    assert rows == (32 if where == "queued" else 31), "nothing is computed for it any more"
    assert sum(len(engine.text(other)) for other in others) == grown + 31


def test_a_chunk_is_what_a_leaver_waits_for_at_most(make_timed) -> None:
    """A command is taken between two steps, so the longest step is the longest wait."""
    engine = make_timed()
    turn = submit(engine, "alone", prompt(1, 12_000))
    engine.step(5)
    engine.model.spans.clear()
    engine.step(20)
    assert longest_s(engine) <= 0.11
    engine.cancel(turn)
