"""The fake device does what a device may do: anything that no event forbids."""

import pytest
import torch

from tests.fakes.fake_device import DeadlockError, FakeDevice, FakeEvent, copy

SEEDS = range(40)


def test_nothing_happens_before_it_is_told_to():
    device = FakeDevice()
    target = torch.zeros(4, dtype=torch.uint8)
    aside = device.stream()
    aside.copy(target, torch.full((4,), 7, dtype=torch.uint8))
    event = aside.record()
    assert not event.query()
    assert target.tolist() == [0, 0, 0, 0]
    event.synchronize()
    assert target.tolist() == [7, 7, 7, 7]
    assert event.query()


def outcomes(*, waits: bool) -> set[tuple[int, ...]]:
    """What a copy of a value finds that another stream writes, under several orders."""
    found = set()
    for seed in SEEDS:
        device = FakeDevice(seed=seed)
        value, target = torch.zeros(2, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)
        aside = device.stream()
        device.compute.run(lambda value=value: copy(value, torch.ones(2, dtype=torch.uint8)))
        if waits:
            aside.wait(device.compute.record())
        aside.copy(target, value)
        device.run_all()
        found.add(tuple(target.tolist()))
    return found


def test_a_missing_wait_shows_as_wrong_bytes_and_torn_ones():
    assert outcomes(waits=True) == {(1, 1)}
    assert outcomes(waits=False) == {(0, 0), (0, 1), (1, 1)}


def test_an_eager_stream_has_others_do_what_it_waits_for_and_no_more():
    device = FakeDevice(eager_compute=True)
    first, second = torch.zeros(2, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)
    ones = torch.ones(2, dtype=torch.uint8)
    aside = device.stream()
    aside.copy(first, ones)
    event = aside.record()
    aside.copy(second, ones)
    device.compute.wait(event)
    assert (first.sum(), second.sum()) == (2, 0)


def test_a_wait_for_what_never_comes_is_told():
    device = FakeDevice()
    device.compute.wait(FakeEvent(device))
    with pytest.raises(DeadlockError):
        device.compute.synchronize()


def test_a_graph_reads_its_inputs_anew_at_each_replay():
    device = FakeDevice()
    inputs = torch.zeros(2)
    graph = device.capture(lambda: inputs + 1)
    device.compute.copy(inputs, torch.tensor([4.0, 5.0]))
    graph.replay()
    assert graph.output.tolist() == [1.0, 1.0]
    device.run_all()
    assert graph.output.tolist() == [5.0, 6.0]
