"""Copies in streams of their own: right bytes in whatever order the device does what it may."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv.tiers.stream_mover import runs
from tests.fakes.fake_device import FakeDevice
from tests.tiers.streaming import BLOCK, Impatient, Workload, label

SEEDS = range(60)
STEPS = 120


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_order_of_the_streams_shows_wrong_bytes(seed: int) -> None:
    work = Workload(seed).run(STEPS)
    assert not work.wrong
    assert not list(work.tiers.violations())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nor_does_one_with_a_disk_behind_threads(seed: int, tmp_path_factory) -> None:
    work = Workload(seed, tmp_path_factory.mktemp("tier")).run(STEPS)
    assert not work.wrong
    assert not list(work.tiers.violations())
    work.tiers.close()


def test_the_work_meets_every_kind_of_move(tmp_path: Path) -> None:
    did = Counter()
    for seed in range(10):
        did += Workload(seed, tmp_path / str(seed)).run(STEPS).did
    for kind in ("read", "store host", "fetch host", "store disk", "fetch disk"):
        assert did[kind] > 5, did


@pytest.mark.parametrize("lacks", ["out waits", "in waits", "out is over", "in is over"])
def test_each_wait_is_needed(lacks: str) -> None:
    """What the tests above find if one of the orders is not kept."""
    works = (Workload(seed, device=Impatient(seed, lacks)).run(STEPS) for seed in SEEDS)
    assert any(work.wrong for work in works)


def test_the_impatient_device_without_a_lack_is_right() -> None:
    works = (Workload(seed, device=Impatient(seed, "")).run(STEPS) for seed in SEEDS)
    assert not any(work.wrong for work in works)


def test_a_look_never_waits() -> None:
    work = Workload(0)
    work.write()
    (transfer,) = work.tiers.begin_store(
        next(iter(work.tiers)), [(block := next(iter(work.holds)), label(1))]
    )
    queued = len(work.device.streams[1])
    assert work.tiers.finished() == []
    assert len(work.device.streams[1]) == queued, "nothing was done meanwhile"
    work.tiers.wait(5.0)
    assert work.tiers.finished() == [transfer]
    assert transfer.good == [True]
    assert transfer.seconds >= 0
    assert next(iter(work.tiers)).store.slots[transfer.slots[0]].tolist() == [1] * BLOCK
    assert block == transfer.blocks[0]


def test_closing_carries_out_what_has_begun(tmp_path: Path) -> None:
    work = Workload(3, tmp_path)
    for _ in range(10):
        work.write()
    for tier in work.tiers:
        work.store()
        pairs = [(block, label(value)) for block, value in list(work.holds.items())[:2]]
        work.tiers.begin_store(tier, pairs)
    assert work.tiers.in_flight
    transfers = work.tiers.close()
    assert transfers
    assert not work.tiers.in_flight
    assert all(all(transfer.good) for transfer in transfers)


def test_what_is_erased_is_zero_before_its_slot_is_used_again() -> None:
    work = Workload(1)
    (tier,) = work.tiers
    work.write()
    (block, value) = next(iter(work.holds.items()))
    (transfer,) = work.tiers.begin_store(tier, [(block, label(value))])
    work.tiers.wait(5.0)
    work.tiers.finished()
    work.tiers.erase(transfer.keys)
    (again,) = work.tiers.begin_store(tier, [(block, label(value))])
    assert again.slots == transfer.slots
    work.device.run_all()
    assert tier.store.slots[transfer.slots[0]].tolist() == [value] * BLOCK
    work.tiers.finished()
    work.tiers.erase(transfer.keys)
    work.device.run_all()
    assert not tier.store.slots.any()


def test_neighbours_are_one_copy() -> None:
    device = FakeDevice()
    work = Workload(0, device=device)
    for block in (3, 4, 5, 9):
        work.free.remove(block)
        work.holds[block] = block
    (tier,) = work.tiers
    work.tiers.begin_store(tier, [(block, label(block)) for block in (3, 4, 5, 9)])
    assert device.streams[1].copies == 2
    assert device.streams[1].waits == 1


@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30)),
        unique_by=(lambda p: p[0], lambda p: p[1]),
    )
)
def test_runs_cover_each_pair_once_and_are_as_long_as_can_be(pairs: list[tuple[int, int]]) -> None:
    found = list(runs([block for block, _ in pairs], [place for _, place in pairs]))
    covered = [(b + i, p + i) for b, p, count in found for i in range(count)]
    assert sorted(covered) == sorted(pairs)
    for (block, place, count), after in pairwise(found):
        assert (block + count, place + count) != after[:2]
