"""T61 (vllm#28493, locust#323): what is shed is tried again on one clock, what is lost counts."""

import pytest

from loadtest.conversation import Conversation
from loadtest.recorder import Recorder, inter_token_s, is_warm
from loadtest.retry import PASSING, RetryBudget, wait_before_retry
from loadtest.scenarios import CrowdStage
from sessiond.capacity.observations import TurnSeen, read
from tests.cli.scripted_server import Play, ScriptedServer, reply


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def refused(code, retry_after=None):
    error = {"code": code, "message": "no"}
    if retry_after is not None:
        error["headers"] = {"Retry-After": str(retry_after)}
    return [{"type": "error", "status": 429, "error": error}]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def talking(clock):
    """Makes conversations; closes them."""
    made = []

    def make(server, **options):
        made.append(Conversation(server.url, sleep=clock.sleep, clock=clock, **options))
        return made[-1]

    yield make
    for conversation in made:
        conversation.drop()


def test_a_turn_that_was_shed_is_tried_again_and_its_clock_runs_on(talking):
    plays = [Play(frames=refused("queue_full", 3)), Play(frames=refused("rate_limit_exceeded"))]
    with ScriptedServer([*plays, Play(frames=reply("Hello there"))]).running() as server:
        met = talking(server).say("hi")
        assert [create["input"] for create in server.creates] == ["hi"] * 3
    assert (met.lost, met.tries, met.refusals) == (False, 3, 2)
    assert met.total_s == met.ttft_s == 3 + 1  # Retry-After, then twice the first wait


def test_a_turn_that_stays_refused_is_lost_and_says_why(talking):
    plays = [Play(frames=refused("queue_full", 4)) for _ in range(9)]
    with ScriptedServer(plays).running() as server:
        met = talking(server, retry_budget=RetryBudget(seconds=10)).say("hi")
        assert len(server.creates) == 3
    assert (met.lost, met.code, met.refusals, met.total_s) == (True, "queue_full", 3, 8)


def test_what_can_never_work_is_not_tried_again(talking):
    plays = [Play(frames=refused("previous_response_not_found"))]
    with ScriptedServer(plays).running() as server:
        met = talking(server).say("hi")
    assert (met.lost, met.tries, met.code) == (True, 1, "previous_response_not_found")


def test_a_cut_turn_goes_on_over_a_new_socket_from_where_it_was(talking):
    first = Play(frames=reply("Hi", response_id="resp_1"), close_code=None)
    cut = Play(frames=reply("Half")[:2], close_code=1012)
    last = Play(frames=reply("Whole", response_id="resp_3", cached=8))
    with ScriptedServer([first, cut, last]).running() as server:
        conversation = talking(server)
        assert not is_warm(conversation.say("one"))
        met = conversation.say("two")
        conversation.close()
        assert server.connections == 2
        tips = [create.get("previous_response_id") for create in server.creates]
    assert tips == [None, "resp_1", "resp_1"]
    assert (met.lost, met.tries, met.refusals) == (False, 2, 0)
    assert is_warm(met)
    assert conversation.tip == "resp_3"


def test_nobody_there_is_lost_after_patience(clock):
    conversation = Conversation(
        "http://127.0.0.1:9", sleep=clock.sleep, clock=clock, retry_budget=RetryBudget(seconds=3)
    )
    met = conversation.say("hi")
    assert (met.lost, met.code) == (True, "cut")
    assert met.tries > 1


def test_a_slow_reader_waits_before_each_frame(talking):
    with ScriptedServer([Play(frames=reply("one two three"))]).running() as server:
        met = talking(server, read_delay_s=2.0).say("hi")
    assert met.total_s == 2.0 * len(reply("one two three"))


def test_what_was_met_is_written_down(tmp_path, talking):
    path = tmp_path / "turns.jsonl"
    recorder = Recorder(str(path))
    recorder.stage_begun(CrowdStage(5, 30.0, 700))
    with ScriptedServer([Play(frames=reply("Hi"))]).running() as server:
        conversation = talking(server)
        met = conversation.say("one")
        recorder.turn(met, 5)
        recorder.turn(conversation.say("gone"), 5)
    recorder.close()
    stage, good, lost = read(path)
    assert (stage.users, stage.seconds, stage.length_tokens) == (5, 30.0, 700)
    assert isinstance(good, TurnSeen)
    assert (good.output_tokens, good.warm, good.lost, good.users) == (5, False, False, 5)
    assert (lost.lost, lost.code) == (True, "cut")
    assert inter_token_s(met) is None  # no time passed between the tokens


class TestRetry:
    def test_waits_double_up_to_a_bound(self):
        waits = [
            wait_before_retry("cut", n, 0.0, None, RetryBudget(seconds=99)) for n in range(1, 8)
        ]
        assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]

    @pytest.mark.parametrize("code", sorted(PASSING))
    def test_patience_ends(self, code):
        assert wait_before_retry(code, 1, 59.4, None, RetryBudget(seconds=60)) == 0.5
        assert wait_before_retry(code, 1, 59.6, None, RetryBudget(seconds=60)) is None
        assert wait_before_retry(code, 1, 0.0, 61.0, RetryBudget(seconds=60)) is None
