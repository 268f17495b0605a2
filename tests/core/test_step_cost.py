"""StepCost: what synthetic machines' steps cost, learned while they run."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.step_cost import NO_LOAD, StepCost, StepLoad, StepPrice

MACHINE = StepPrice(2.4e-3, 4e-4, 6e-7, 2.7e-7)


def decodes(count: int, context: int) -> StepLoad:
    load = NO_LOAD
    for _ in range(count):
        load += StepLoad.of(context - 1, 1)
    return load


PROBES = [
    decodes(1, 256),
    decodes(32, 256),
    decodes(32, 2000),
    StepLoad.of(0, 512),
    StepLoad.of(4096, 256),
    decodes(32, 500) + StepLoad.of(5000, 128),
]


def times(machine: StepPrice, factor: float) -> StepPrice:
    return StepPrice(
        *(x * factor for x in (machine.base_s, machine.row_s)),
        *(x * factor for x in (machine.kv_token_s, machine.pair_s)),
    )


class Rig:
    """Notes what a machine's steps take, in a mix of decodes and chunks."""

    def __init__(self, machine: StepPrice, seed: int = 1) -> None:
        self.machine = machine
        self.cost = StepCost()
        self.random = random.Random(seed)

    def load(self) -> StepLoad:
        draw = self.random
        load = decodes(draw.choice((1, 8, 32)), draw.choice((256, 1000, 3000)))
        if draw.random() < 0.3:
            load += StepLoad.of(draw.randrange(4000), draw.choice((16, 64, 200, 480)))
        return load

    def run(self, steps: int, slower: float = 1, noise: float = 0.1, outliers: float = 0) -> None:
        for _ in range(steps):
            load = self.load()
            seconds = self.machine.seconds(load) * slower * (1 + noise * self.random.random())
            if self.random.random() < outliers:
                seconds *= self.random.choice((3, 10, 100))
            self.cost.note(load, seconds)

    def error(self) -> float:
        """The worst factor between what is predicted and what it takes."""
        ratios = [self.cost.price.seconds(x) / self.machine.seconds(x) for x in PROBES]
        return max(max(ratio, 1 / ratio) for ratio in ratios)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.floats(1e-5, 1e-1),
    st.floats(1e-6, 1e-2),
    st.floats(0, 1e-5),
    st.floats(0, 1e-5),
    st.integers(0, 1000),
)
def test_any_linear_machine_is_learned(
    base_s: float, row_s: float, kv_token_s: float, pair_s: float, seed: int
) -> None:
    rig = Rig(StepPrice(base_s, row_s, kv_token_s, pair_s), seed)
    rig.run(150)
    assert rig.error() < 1.6


@pytest.mark.parametrize("factor", [0.01, 1, 100])
def test_a_few_steps_tell_how_fast_the_machine_is(factor: float) -> None:
    rig = Rig(times(MACHINE, factor))
    rig.run(5)
    assert rig.error() < 2


def test_decodes_alone_tell_about_prefill_as_much_as_the_prior_does() -> None:
    rig = Rig(times(MACHINE, 20))
    for _ in range(50):
        load = decodes(8, 500)
        rig.cost.note(load, rig.machine.seconds(load))
    assert rig.error() < 2


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_steps_that_were_held_up_now_and_then_do_no_harm(seed: int) -> None:
    rig = Rig(MACHINE, seed)
    rig.run(200, outliers=0.1)
    assert rig.error() < 1.5


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_a_machine_that_changes_its_speed_is_learned_anew(seed: int, factor: float) -> None:
    rig = Rig(MACHINE, seed)
    rig.run(100)
    rig.run(200, slower=factor)
    rig.run(200)
    assert rig.error() < 1.5


def test_the_first_step_may_take_long_without_spoiling_what_follows() -> None:
    rig = Rig(MACHINE)
    rig.cost.note(PROBES[3], 50)
    rig.run(30)
    assert rig.error() < 1.6


def test_prefill_is_remembered_while_all_decode() -> None:
    machine = StepPrice(2.4e-3, 4e-3, 6e-7, 5e-6)  # chunks cost ten times the prior's share
    rig = Rig(machine)
    rig.run(100)
    for _ in range(5000):
        load = decodes(8, 500)
        rig.cost.note(load, machine.seconds(load))
    assert rig.error() < 1.5


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(1, 600), st.floats(1e-7, 1e3)),
        max_size=40,
    )
)
def test_no_price_is_negative_and_more_work_never_costs_less(
    steps: list[tuple[int, int, float]],
) -> None:
    cost = StepCost()
    for first, count, seconds in steps:
        cost.note(StepLoad.of(first, count), seconds)
    assert all(x >= 0 for x in (cost.price.base_s, cost.price.row_s))
    assert all(x >= 0 for x in (cost.price.kv_token_s, cost.price.pair_s))
    costs = [cost.price.seconds(StepLoad.of(1000, count)) for count in range(1, 500, 7)]
    assert costs == sorted(costs)
    assert costs[0] > 0


def test_nothing_is_learned_from_a_step_that_took_no_time() -> None:
    cost = StepCost()
    before = cost.price
    cost.note(PROBES[0], 0.0)
    cost.note(NO_LOAD, 1.0)
    assert cost.price == before
