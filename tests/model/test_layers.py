"""Rotations and the table of positions."""

import math

import numpy as np
import pytest
import torch

from engine.files.model_spec import RopeSpec
from engine.model.layers import RotaryTable, TorchOps
from tests.laws.law_model import FixedOrderOps

CPU = torch.device("cpu")


def rotary(dtype=torch.float64, **rope):
    return RotaryTable(RopeSpec(theta=100.0, **rope), 8, dtype=dtype, device=CPU)


@pytest.mark.parametrize("ops", [TorchOps(), FixedOrderOps()])
def test_rotations_add_up(ops):
    table = rotary()
    x = torch.randn(5, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = (table.at(np.full(5, place))[:, None] for place in (7, 25))
    both = table.at(np.full(5, 32))[:, None]
    twice = ops.rotate(ops.rotate(x, one), other)
    torch.testing.assert_close(twice, ops.rotate(x, both), atol=1e-12, rtol=0)
    back = ops.rotate(ops.rotate(x, one), table.at(np.full(5, -7))[:, None])
    torch.testing.assert_close(back, x, atol=1e-12, rtol=0)


def test_table_grows_without_changing_what_it_held():
    grown, fresh = rotary(), rotary()
    positions = np.array([-5, 0, 3, 900])
    early = grown.at(positions)
    far = grown.at(np.array([20_000]))
    assert torch.equal(grown.at(positions), early)
    assert torch.equal(fresh.at(np.array([20_000])), far)
    # float32 frequencies, as transformers has them: at this position an angle is off by 1e-3
    angles = [20_000 * 100 ** (-pair / 4) for pair in range(4)]
    expected = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in angles])
    torch.testing.assert_close(far[0], expected.double(), atol=2e-3, rtol=0)


def test_divisors_slow_the_frequencies_down():
    slow = rotary(frequency_divisors=(4.0, 4.0, 4.0, 4.0))
    torch.testing.assert_close(
        slow.at(np.array([40])), rotary().at(np.array([10])), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("ops", [TorchOps(), FixedOrderOps()])
def test_norm_and_mlp_follow_their_formulas(ops):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 12, dtype=torch.float64, generator=generator)
    weight = torch.rand(12, dtype=torch.float64, generator=generator)
    norm = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-3), norm)
    torch.testing.assert_close(ops.swiglu(x), x[:, :6] * x[:, :6].sigmoid() * x[:, 6:])
    assert torch.isfinite(ops.swiglu(x * 1e6)).all()
