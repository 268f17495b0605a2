"""Stages of a ramp, the knee in them, fleets, and a second run beside the prediction."""

import msgspec
import pytest
from rich.console import Console

from sessiond.capacity.knee import find_knee, find_longest, instances_for, predict
from sessiond.capacity.observations import ServerSeen, StageBegun, TurnSeen, encode, read
from sessiond.capacity.page import check_lines, html_page, stage_table
from sessiond.capacity.picture import draw
from sessiond.capacity.report import Report, answer, check, ramp, users_around
from sessiond.capacity.stages import LoadStage, sum_up

QUIET = LoadStage(
    users=0, seconds=20.0, turns_per_s=1.0, tokens_per_s=0.0, ttft_warm_p50_s=0.05,
    ttft_warm_p95_s=0.1, ttft_cold_p95_s=0.3, inter_token_p95_s=0.02, pool_use=0.1,
    kv_bytes=2**20, waiting=0.0, refusals=0, lost=0, evictions=0.0, preemptions=0.0,
)  # fmt: skip


def stage(users, tokens_per_s, **changes):
    changes = {"users": users, "tokens_per_s": float(tokens_per_s)} | changes
    return msgspec.structs.replace(QUIET, **changes)


SATURATING = [stage(8, 80), stage(16, 158), stage(24, 230), stage(32, 240), stage(40, 238)]


def report(stages=SATURATING, knee=None):
    return Report(model="m", load="a load", stages=stages, knee=knee or find_knee(stages))


class TestKnee:
    def test_throughput_that_stops_rising(self):
        knee = find_knee(SATURATING)
        assert (knee.users, knee.found) == (24, True)
        assert "the maximum is 240 tokens/s" in knee.reason

    def test_a_ramp_that_ends_early_says_so(self):
        knee = find_knee(SATURATING[:3])
        assert (knee.users, knee.found) == (24, False)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"lost": 2}, "2 conversations were lost"),
            ({"refusals": 3}, "turns were refused 3 times"),
            ({"preemptions": 4.0}, "preempted 4 times"),
            ({"ttft_warm_p95_s": 2.0}, "was 2.00 s"),
        ],
    )
    def test_what_gives_way_before_throughput(self, changes, said):
        stages = [stage(8, 80), stage(16, 158, **changes), stage(24, 230)]
        knee = find_knee(stages, ttft_limit_s=1.0)
        assert (knee.users, knee.found) == (8, True)
        assert f"at 16 users {said}" in knee.reason or said in knee.reason

    def test_a_server_that_sheds_looks_no_better(self):
        """T61: it answers the few it lets in at once; its knee is where refusals begin."""
        shedding = [stage(8, 80), stage(16, 160, refusals=40), stage(24, 240, refusals=90)]
        assert find_knee(shedding).users == 8

    def test_a_server_that_bears_nobody(self):
        knee = find_knee([stage(8, 0, lost=1)])
        assert knee.users == 0
        with pytest.raises(ValueError, match="no number of servers"):
            instances_for(5, knee)

    def test_fleets_have_reserve(self):
        knee = find_knee(SATURATING)
        assert [instances_for(n, knee) for n in (1, 19, 20, 1000)] == [1, 1, 2, 53]
        assert answer(report(), 20)[-1] == "20 users with 25 % reserve: 2 instances"

    def test_a_ramp_without_a_knee_bounds_a_fleet_from_above(self):
        per_instance, fleet = answer(report(SATURATING[:3]), 1000)
        assert per_instance.startswith("sessions per instance: 24 or more")
        assert fleet == "1000 users with 25 % reserve: at most 53 instances"


class TestPrediction:
    def test_curves_are_read_between_stages(self):
        expected = predict(SATURATING, 20)
        assert expected.tokens_per_s == pytest.approx(194)
        assert predict(SATURATING, 4).tokens_per_s == pytest.approx(40)
        assert predict(SATURATING, 99).tokens_per_s == 238
        assert predict(SATURATING, 99).ttft_warm_p50_s == 0.05

    def test_a_second_run_is_judged(self):
        knee = report().knee
        assert users_around(knee) == [19, 29]
        assert users_around(msgspec.structs.replace(knee, users=2)) == [2]
        near, far = check(report(), [stage(19, 180), stage(29, 150)])
        assert (near.holds, far.holds) == (True, False)
        lines = check_lines([near, far])
        assert "holds" in lines[0]
        assert "236 tokens/s expected, 150 found (-37%)" in lines[1]
        assert "DOES NOT HOLD" in lines[1]

    def test_lost_conversations_break_a_prediction(self):
        assert not check(report(), [stage(16, 158, lost=1)])[0].holds


class TestStages:
    def test_turns_and_looks_belong_to_their_stage_after_it_settled(self):
        def turn(at_s, **facts):
            return TurnSeen(at_s=at_s, users=2, total_s=1.0, output_tokens=10, **facts)

        def look(at_s, active, evictions):
            return ServerSeen(
                at_s=at_s, total_blocks=100, active_blocks=active, running=1, waiting=2,
                block_bytes=1000, evictions_total=evictions,
            )  # fmt: skip

        first, second = sum_up(
            [
                StageBegun(at_s=0.0, users=2, seconds=10.0),
                turn(1.0, ttft_s=9.0, warm=True),  # while it settles
                turn(4.0, ttft_s=0.1, warm=True, inter_token_s=0.02),
                turn(5.0, ttft_s=0.3, warm=True),
                turn(6.0, ttft_s=0.5),
                turn(7.0, refusals=2, lost=True, code="queue_full"),
                look(4.0, 30, 1.0),
                look(8.0, 50, 4.0),
                StageBegun(at_s=10.0, users=4, seconds=10.0),
            ]
        )
        assert (first.users, first.seconds) == (2, 7.0)
        assert first.tokens_per_s == pytest.approx(30 / 7)
        assert first.ttft_warm_p50_s == pytest.approx(0.2)
        assert first.ttft_cold_p95_s == 0.5
        assert (first.refusals, first.lost, first.evictions) == (2, 1, 3.0)
        assert (first.pool_use, first.kv_bytes, first.waiting) == (0.5, 50_000, 2.0)
        assert (second.turns_per_s, second.ttft_warm_p50_s, second.kv_bytes) == (0.0, None, 0)

    def test_a_line_that_was_cut_is_left_out(self, tmp_path):
        line = encode(StageBegun(at_s=1.0, users=1, seconds=1.0))
        (tmp_path / "a").write_bytes(line + line[:-5])
        assert len(read(tmp_path / "a")) == 1


def test_ramps():
    assert ramp(32, 8) == [4, 8, 12, 16, 20, 24, 28, 32]
    assert ramp(3, 8) == [1, 2, 3]


def test_what_people_see():
    console = Console(width=80)
    with console.capture() as captured:
        console.print(stage_table(SATURATING))
    lines = captured.get().splitlines()
    assert len(lines) == 6
    assert lines[0].split() == [
        "users", "turn/s", "tok/s", "warm50", "warm95", "cold95", "next95", "pool", "queue",
        "shed", "lost", "evict", "preem",
    ]  # fmt: skip
    picture = draw(report())
    assert picture.startswith(b"\x89PNG")
    page = html_page(report([*SATURATING[:4]]), picture, 20)
    assert "data:image/png;base64," in page
    assert "<td>240</td>" in page


def test_a_report_is_read_as_it_was_written():
    assert msgspec.json.decode(msgspec.json.encode(report()), type=Report) == report()


class TestLengths:
    STAGES = tuple(
        stage(4, tokens_per_s, length_tokens=length)
        for length, tokens_per_s in ((500, 90), (1000, 60), (1500, 20))
    )

    def test_m08_the_longest_before_a_limit(self):
        late = [*self.STAGES[:2], msgspec.structs.replace(self.STAGES[2], preemptions=2.0)]
        knee = find_longest(late)
        assert (knee.users, knee.length_tokens, knee.found) == (4, 1000, True)
        (line,) = answer(report(late, knee), None)
        assert line == (
            "longest conversations of 4 users: 1000 tokens "
            "(at 1500 tokens running turns were preempted 2 times)"
        )

    def test_throughput_that_falls_with_length_is_no_limit(self):
        knee = find_longest(self.STAGES)
        assert (knee.length_tokens, knee.found) == (1500, False)
        assert "1500 or more tokens" in answer(report(self.STAGES, knee), None)[0]
        assert draw(report(self.STAGES, knee)).startswith(b"\x89PNG")

    def test_a_stage_knows_its_length(self):
        (only,) = sum_up([StageBegun(at_s=0.0, users=2, seconds=10.0, length_tokens=700)])
        assert only.length_tokens == 700

    def test_without_a_stage_there_is_none(self):
        with pytest.raises(ValueError, match="one or more"):
            find_longest([])
