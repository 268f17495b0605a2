"""plan_step: decodes first, then running prompts, then newcomers, within budget and seats."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ids import TurnId
from engine.scheduler import StepView, TurnLoad, Work, plan_step


def loads(**pending: int) -> list[TurnLoad]:
    return [TurnLoad(TurnId(turn), tokens) for turn, tokens in pending.items()]


def view(running: list[TurnLoad], waiting: list[TurnLoad], budget: int, seats: int) -> StepView:
    return StepView(
        running=running, waiting=waiting, max_num_batched_tokens=budget, max_num_seqs=seats
    )


def test_decodes_come_before_chunks_and_chunks_before_admissions() -> None:
    plan = plan_step(view(loads(a=100, b=1, c=1), loads(d=5), budget=8, seats=4))
    assert plan.work == [Work("b", 1), Work("c", 1), Work("a", 6)]
    assert plan.admissions == []


def test_what_is_left_of_the_budget_goes_to_newcomers_in_order() -> None:
    plan = plan_step(view(loads(a=1), loads(b=5, c=50, d=5), budget=20, seats=8))
    assert plan.work == [Work("a", 1)]
    assert plan.admissions == [Work("b", 5), Work("c", 14)]


def test_no_more_turns_run_than_there_are_seats() -> None:
    plan = plan_step(view(loads(a=1, b=1), loads(c=1, d=1), budget=20, seats=3))
    assert plan.admissions == [Work("c", 1)]


def test_a_turn_whose_tokens_are_all_there_is_admitted_for_nothing() -> None:
    plan = plan_step(view([], loads(a=0, b=3), budget=20, seats=3))
    assert plan.admissions == [Work("a", 0), Work("b", 3)]


@settings(derandomize=True)
@given(
    running=st.lists(st.integers(1, 60), max_size=6),
    waiting=st.lists(st.integers(0, 60), max_size=6),
    spare_budget=st.integers(0, 60),
    spare_seats=st.integers(0, 4),
)
def test_every_plan_keeps_the_limits_and_starves_no_decode(
    running: list[int], waiting: list[int], spare_budget: int, spare_seats: int
) -> None:
    seats = max(1, len(running) + spare_seats)
    budget = seats + spare_budget
    loads_r = [TurnLoad(TurnId(f"r{i}"), pending) for i, pending in enumerate(running)]
    loads_w = [TurnLoad(TurnId(f"w{i}"), pending) for i, pending in enumerate(waiting)]
    plan = plan_step(view(loads_r, loads_w, budget, seats))
    work = [*plan.work, *plan.admissions]
    assert sum(item.tokens for item in work) <= budget
    assert len(plan.admissions) + len(running) <= seats
    pending = dict([*loads_r, *loads_w])
    assert all(item.tokens <= pending[item.turn] for item in work)
    assert len({item.turn for item in work}) == len(work)
    assert {load.turn for load in loads_r if load.pending == 1} <= {i.turn for i in plan.work}
    assert [item.turn for item in plan.admissions] == [w.turn for w in loads_w][
        : len(plan.admissions)
    ]
    if running or waiting:
        assert work, "there is always something to do"
