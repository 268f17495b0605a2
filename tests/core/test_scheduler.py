"""plan_step: decodes first, then prompts by length within rows and time; no work done twice."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.scheduler import StepPlan, StepView, TurnLoad, Work, plan_step
from engine.core.step_cost import NO_LOAD, Pace, StepLoad, StepPrice
from engine.ids import TurnId

BLOCK = 16
PRICE = StepPrice(2e-3, 4e-4, 6e-7, 3e-7)
FREE = Pace(max_rows=512, target_s=0, price=PRICE, trusted_rows=64)
PACED = replace(FREE, target_s=0.1, trusted_rows=4096)


def loads(**pending: int) -> list[TurnLoad]:
    return [TurnLoad(TurnId(turn), tokens) for turn, tokens in pending.items()]


def plan(
    running: list[TurnLoad], waiting: list[TurnLoad], pace: Pace = FREE, running_slots: int = 32
) -> StepPlan:
    return plan_step(
        StepView(
            running=running,
            waiting=waiting,
            max_num_seqs=running_slots,
            block_size=BLOCK,
            pace=pace,
        )
    )


def rows(count: int) -> Pace:
    return replace(FREE, max_rows=count)


def decodes(count: int, context: int) -> list[TurnLoad]:
    return [TurnLoad(TurnId(f"d{i}"), 1, context) for i in range(count)]


def load_of(plan: StepPlan, turns: list[TurnLoad]) -> StepLoad:
    first = {load.turn: load.first for load in turns}
    works = [work for work in (*plan.work, *plan.admissions) if work.tokens]
    return sum((StepLoad.of(first[work.turn], work.tokens) for work in works), NO_LOAD)


def tokens(plan: StepPlan) -> dict[str, int]:
    return {work.turn: work.tokens for work in (*plan.work, *plan.admissions)}


def test_decodes_come_before_chunks_and_chunks_before_admissions() -> None:
    made = plan(loads(a=100, b=1, c=1), loads(d=5), rows(8))
    assert made.work == [Work(TurnId("b"), 1), Work(TurnId("c"), 1), Work(TurnId("a"), 6)]
    assert made.admissions == []


def test_the_shortest_of_the_highest_priority_is_done_first() -> None:
    high, low = TurnLoad(TurnId("high"), 300, priority=2), TurnLoad(TurnId("low"), 20, priority=0)
    made = plan([low, *loads(tiny=30, old=900)], [high], rows(330))
    assert tokens(made) == {"high": 300, "tiny": 30}


def test_the_part_of_the_oldest_is_for_the_owner_who_had_least() -> None:
    busy = [TurnLoad(TurnId(f"a{n}"), 900 - n, served=5000.0) for n in range(3)]
    mine = TurnLoad(TurnId("mine"), 2000, served=10.0)
    made = plan([*busy, mine], [], rows(400))
    assert tokens(made)["mine"] == 100, "though it is the longest and the last to come"
    assert sum(tokens(made).values()) == 400


def test_a_prompt_that_runs_goes_on_beside_one_of_higher_priority_that_finds_no_blocks() -> None:
    high, low = TurnLoad(TurnId("high"), 900, priority=2), TurnLoad(TurnId("low"), 900, priority=0)
    made = plan([low], [high], rows(100))
    assert made.work == [Work(TurnId("low"), 25)], "else neither would ever end"


def test_short_prompts_are_done_first_and_the_oldest_has_its_part() -> None:
    made = plan(loads(old=5000), loads(long=3000, short=100, tiny=20), rows(400))
    assert made.work == [Work(TurnId("old"), 100)]
    assert tokens(made) == {"old": 100, "long": 180, "short": 100, "tiny": 20}


def test_what_the_shorter_ones_leave_is_the_oldest_ones() -> None:
    made = plan(loads(old=5000), loads(short=100), rows(400))
    assert tokens(made) == {"old": 300, "short": 100}


def test_who_comes_earlier_gets_blocks_earlier_though_it_computes_later() -> None:
    made = plan(loads(old=5000), loads(long=3000, short=300), rows(400))
    assert made.admissions == [Work(TurnId("long"), 0), Work(TurnId("short"), 300)]
    made = plan(loads(old=5000), loads(short=300, long=3000), rows(400))
    assert made.admissions == [Work(TurnId("short"), 300)]


def test_less_than_a_block_is_not_worth_reading_a_context_for() -> None:
    assert tokens(plan(loads(old=5000, short=10, long=3000), [], rows(30))) == {
        "old": 20,
        "short": 10,
    }


def test_no_more_turns_run_than_there_are_running_slots() -> None:
    made = plan(loads(a=1, b=1), loads(c=1, d=1), running_slots=3)
    assert made.admissions == [Work(TurnId("c"), 1)]


def test_a_turn_whose_tokens_are_all_there_is_admitted_for_nothing() -> None:
    made = plan([], loads(a=0, b=3))
    assert made.admissions == [Work(TurnId("a"), 0), Work(TurnId("b"), 3)]
    assert plan([], loads(a=0)).admissions == [Work(TurnId("a"), 0)]


# --- pace


def test_a_chunk_is_as_large_as_the_time_beside_the_streams_allows() -> None:
    for count in (1, 8, 32):
        turns = [*decodes(count, 500), TurnLoad(TurnId("p"), 5000)]
        made = plan(turns, [], PACED)
        taken_s = PRICE.seconds(load_of(made, turns))
        assert 0.075 < taken_s <= 0.1
        assert {f"d{i}" for i in range(count)} <= set(tokens(made))


def test_the_deeper_the_prompt_the_smaller_the_chunk() -> None:
    chunks = [
        tokens(plan([TurnLoad(TurnId("p"), 5000, depth)], [], PACED))["p"]
        for depth in (0, 2000, 8000, 30_000)
    ]
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[0] > 3 * chunks[-1]


def test_prompts_get_a_fifth_of_steps_whose_streams_alone_take_too_long() -> None:
    streams = decodes(16, 20_000)
    turns = [*streams, *loads(p=5000)]
    alone_s = PRICE.seconds(load_of(plan(streams, [], PACED), streams))
    taken_s = PRICE.seconds(load_of(plan(turns, [], PACED), turns))
    assert alone_s > PACED.target_s
    assert 1.24 < taken_s / alone_s <= 1.25


def test_the_oldest_and_the_shortest_get_a_block_whatever_it_costs() -> None:
    slow = replace(PACED, price=StepPrice(1.0, 1.0, 0.0, 0.0))
    turns = [*decodes(8, 100), *loads(old=5000, young=3000, short=40)]
    made = tokens(plan(turns, [], slow))
    assert {turn: made.get(turn) for turn in ("old", "young", "short")} == {
        "old": BLOCK,
        "young": None,
        "short": BLOCK,
    }


@pytest.mark.parametrize("running", [0, 4, 9])
def test_a_crowd_of_prompts_counts_those_that_run_and_those_that_wait(running: int) -> None:
    streams = decodes(8, 500)
    prompts = [TurnLoad(TurnId(f"p{number}"), 600) for number in range(9)]
    made = plan([*streams, *prompts[:running]], prompts[running:], PACED)
    assert 0.14 < PRICE.seconds(load_of(made, [*streams, *prompts])) <= 0.15


def test_two_prompts_are_no_crowd_though_only_one_stream_waits_for_them() -> None:
    turns = [*decodes(1, 500), *loads(p=600, q=600)]
    assert 0.1 < PRICE.seconds(load_of(plan(turns, [], PACED), turns)) <= 0.1125


def test_without_streams_a_step_is_bounded_too_and_its_base_is_a_small_part() -> None:
    alone = loads(p=5000)
    for base_s, least_s, most_s in ((2e-3, 0.08, 0.1), (8e-3, 0.3, 0.32), (1.0, 1.0, 1.01)):
        pace = replace(PACED, max_rows=4096, price=StepPrice(base_s, 4e-4, 0.0, 0.0))
        taken_s = pace.price.seconds(load_of(plan(alone, [], pace), alone))
        assert least_s < taken_s <= most_s


def test_the_first_chunk_is_small_for_nothing_is_known_yet() -> None:
    assert tokens(plan(loads(p=5000), [], replace(PACED, trusted_rows=64)))["p"] == 64


def test_without_a_target_only_rows_bound_a_step() -> None:
    assert tokens(plan([*decodes(30, 9000), *loads(p=5000)], [], FREE))["p"] == 482


# --- shared prefixes


def keyed(turn: str, pending: int, first: int, *keys: str) -> TurnLoad:
    index = first // BLOCK
    return TurnLoad(
        TurnId(turn), pending, first, keys[index].encode() if index < len(keys) else None
    )


def test_a_block_is_computed_by_one_turn_and_those_behind_go_on() -> None:
    made = plan(
        [],
        [
            keyed("leader", 60, 0, "x", "y", "z"),
            keyed("follower", 40, 0, "x", "y"),
            keyed("other", 30, 0, "q"),
        ],
    )
    assert made.admissions == [Work(TurnId("leader"), 60), Work(TurnId("other"), 30)]


def test_a_turn_waits_for_a_running_one_only_while_their_next_block_is_the_same() -> None:
    running = [keyed("leader", 1000, 16, "x", "y", "z")]
    same, parted = keyed("f", 40, 16, "x", "y"), keyed("f", 40, 16, "x", "n")
    done = keyed("f", 20, 32, "x", "y")
    assert "f" not in tokens(plan(running, [same]))
    assert tokens(plan(running, [parted]))["f"] == 40
    assert tokens(plan(running, [done]))["f"] == 20


def test_who_is_followed_by_a_short_turn_goes_on_as_soon_as_that_would() -> None:
    running = [*loads(old=5000), keyed("leader", 3000, 0, "x", "y"), *loads(mid=200)]
    assert tokens(plan(running, [], rows(200))) == {"old": 50, "mid": 150}
    made = plan(running, [keyed("short", 40, 0, "x")], rows(200))
    assert tokens(made) == {"old": 50, "leader": 40, "mid": 110}


def test_turns_without_keys_never_wait_for_each_other() -> None:
    assert tokens(plan([], loads(a=40, b=40))) == {"a": 40, "b": 40}


# --- laws

TURNS = st.tuples(st.integers(0, 400), st.integers(0, 3000), st.integers(0, 3))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    running=st.lists(TURNS, max_size=6),
    waiting=st.lists(TURNS, max_size=6),
    spare=st.tuples(st.integers(0, 600), st.integers(0, 4)),
    target_s=st.sampled_from([0.0, 1e-9, 0.02, 0.1]),
    trusted_rows=st.sampled_from([64, 1000]),
)
def test_every_plan_keeps_the_limits_and_starves_nobody(
    running: list[tuple[int, int, int]],
    waiting: list[tuple[int, int, int]],
    spare: tuple[int, int],
    target_s: float,
    trusted_rows: int,
) -> None:
    def turn(name: str, pending: int, first: int, key: int) -> TurnLoad:
        return TurnLoad(TurnId(name), pending, first, b"%d" % key if key else None)

    runs = [turn(f"r{i}", max(1, pending), *x) for i, (pending, *x) in enumerate(running)]
    waits = [turn(f"w{i}", *x) for i, x in enumerate(waiting)]
    spare_rows, spare_slots = spare
    running_slots = max(1, len(runs) + spare_slots)
    pace = Pace(
        max_rows=running_slots + spare_rows,
        target_s=target_s,
        price=PRICE,
        trusted_rows=trusted_rows,
    )
    made = plan(runs, waits, pace, running_slots)
    work = [*made.work, *made.admissions]
    assert sum(item.tokens for item in work) <= pace.max_rows
    assert len(made.admissions) + len(runs) <= running_slots
    pending = {load.turn: load.pending for load in (*runs, *waits)}
    assert all(0 <= item.tokens <= pending[item.turn] for item in work)
    assert all(item.tokens for item in made.work)
    assert len({item.turn for item in work}) == len(work)
    assert {load.turn for load in runs if load.pending == 1} <= {item.turn for item in made.work}
    arrivals = [load.turn for load in waits]
    admitted = [item.turn for item in made.admissions]
    assert admitted == [turn for turn in arrivals if turn in admitted]
    prompts = [load for load in runs if load.pending != 1]
    if prompts:
        assert prompts[0].turn in {item.turn for item in made.work}, "the oldest goes on"
    elif waits and len(runs) < running_slots:
        assert made.admissions, "there is always something to do"
    streams = [load for load in runs if load.pending == 1]
    if target_s and streams:
        all_turns = [*runs, *waits]
        forced = 2 * (PRICE.seconds(StepLoad.of(3400, BLOCK)) - PRICE.base_s)
        decode_s = PRICE.seconds(sum((StepLoad.of(x.first, 1) for x in streams), NO_LOAD))
        crowd = len(all_turns) - len(streams) > 1
        bound = max(target_s * (1.5 if crowd else 1), 1.25 * decode_s)
        assert PRICE.seconds(load_of(made, all_turns)) <= bound + forced
