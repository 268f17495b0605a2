"""Crowds over time, and the gate that judges what they met."""

import math
from argparse import ArgumentParser

import pytest

from loadtest.gate import Limits, Totals, broken_limits, parse_p95
from loadtest.options import checked
from loadtest.scenarios import SCENARIOS, CrowdStage, parse_stages, stage_at, stages_of


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_takes_the_time_and_the_users_that_it_is_given(name):
    stages = stages_of(name, 40, 60.0)
    assert sum(stage.seconds for stage in stages) == pytest.approx(60.0)
    assert max(stage.users for stage in stages) == 40


def test_bursts_come_suddenly_and_go():
    assert [stage.users for stage in stages_of("burst", 50, 10)] == [10, 50, 10, 50, 10]
    assert [stage.users for stage in stages_of("ramp", 2, 8)][:2] == [1, 1]


def test_stages_follow_each_other():
    stages = parse_stages("5:30,10:20")
    assert stages == [CrowdStage(5, 30.0), CrowdStage(10, 20.0)]
    assert [stage_at(stages, at) for at in (0, 29.9, 30, 49, 50)] == [
        stages[0], stages[0], stages[1], stages[1], None,
    ]  # fmt: skip


def test_stages_may_have_a_length():
    assert parse_stages("5:30:700,5:30:1400") == [
        CrowdStage(5, 30.0, 700),
        CrowdStage(5, 30.0, 1400),
    ]


@pytest.mark.parametrize("text", ["", "5", "x:1", "0:5", "5:0", "5:1,,", "5:1:-1", "5:1:2:3"])
def test_stages_that_are_none(text):
    with pytest.raises(ValueError, match="must be USERS:SECONDS"):
        parse_stages(text)


def totals(**changes):
    values = {"turns": 100, "failed": 1, "lost": 0, "refused": 0, "p95_ms": {"turn": 900.0}}
    return Totals(**values | changes)


class TestGate:
    def test_what_keeps_to_the_limits_passes(self):
        assert broken_limits(totals(), Limits(p95_ms={"turn": 900.0})) == []
        assert broken_limits(totals(refused=500), Limits()) == []  # it was served in the end

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"lost": 1}, "lost conversations must be at most 0 (got 1)"),
            ({"failed": 2}, "failed turns must be at most 1.0% (got 2.0%)"),
            ({"p95_ms": {"turn": 901.0}}, "p95 of turn must be at most 900 ms (got 901 ms)"),
            ({"p95_ms": {}}, "p95 of turn must be at most 900 ms (got nan ms)"),
            ({"p95_ms": {"turn": math.nan}}, "p95 of turn must be at most 900 ms (got nan ms)"),
            ({"turns": 0}, "no turn ended"),
        ],
    )
    def test_what_does_not_is_said(self, changes, said):
        assert said in " ".join(broken_limits(totals(**changes), Limits(p95_ms={"turn": 900.0})))

    def test_limits_are_read(self):
        assert parse_p95(["turn=900", "itl=12.5"]) == {"turn": 900.0, "itl": 12.5}
        with pytest.raises(ValueError, match="must be EVENT=MS"):
            parse_p95(["turns=5"])

    def test_wrong_ones_end_a_test_before_it_starts(self, capsys):
        parser = ArgumentParser()
        parser.add_argument("--stages", type=checked(parse_stages), default="")
        assert parser.parse_args(["--stages", "5:30"]).stages == "5:30"
        assert parser.parse_args(["--stages", ""]).stages == ""
        with pytest.raises(SystemExit):
            parser.parse_args(["--stages", "many"])
        assert "stages must be USERS:SECONDS" in capsys.readouterr().err
