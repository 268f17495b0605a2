"""How a curve is judged."""

import pytest

from tests.soaks.curve import Curve, Sample, theil_sen


def curve_of(values, name="rss_bytes"):
    fields = {"rss_bytes": 0, "files": 3, "free_blocks": 8, "active_blocks": 0}
    curve = Curve("made up")
    for number, value in enumerate(values):
        curve.samples.append(Sample(turns=100 * (number + 1), **fields | {name: value}))
    return curve


def test_a_steady_rise_is_the_slope_whatever_single_samples_say():
    points = [(turns, 7.0 * turns) for turns in range(20)]
    points[5] = (5, 1e9)
    points[11] = (11, -1e9)
    assert theil_sen(points) == pytest.approx(7.0, rel=0.05)


def test_a_leak_of_20_bytes_a_turn_is_above_the_limit_of_the_soaks():
    noise = [0, 4096, 0, 8192] * 10
    leaky = curve_of([2**20 + 2000 * number + jump for number, jump in enumerate(noise)])
    still = curve_of([2**20 + jump for jump in noise])
    assert leaky.slope("rss_bytes") > 1024
    assert still.slope("rss_bytes") < 1024


def test_the_first_half_is_the_warm_up():
    curve = curve_of([number * 2**20 for number in range(20)] + [20 * 2**20] * 20)
    assert curve.slope("rss_bytes") == 0
    assert curve.spread("rss_bytes") < 2**20 + 1


def test_one_file_that_stays_open_is_seen():
    assert curve_of([5] * 30 + [6] * 10, name="files").spread("files") == 1
