"""`sessiond top`: rates and quantiles, keys, and the page that they lead to."""

import pytest
from rich.console import Console, ConsoleDimensions

from sessiond.cli.scrape import Between, Sample, read_values
from sessiond.cli.top.keys import split_keys
from sessiond.cli.top.page import TopHistory, TopView, spark, top_page
from sessiond.cli.top.state import Order, TopState, on_key, shown

SCRAPE = """\
# TYPE sessiond_generated_tokens counter
sessiond_generated_tokens_total {tokens}
# TYPE sessiond_prefill_tokens counter
sessiond_prefill_tokens_total{{source="reused"}} {reused}
sessiond_prefill_tokens_total{{source="new"}} {new}
# TYPE sessiond_time_to_first_token_seconds histogram
sessiond_time_to_first_token_seconds_bucket{{path="warm",le="0.1"}} {fast}
sessiond_time_to_first_token_seconds_bucket{{path="warm",le="0.5"}} {slow}
sessiond_time_to_first_token_seconds_bucket{{path="warm",le="+Inf"}} {all}
sessiond_time_to_first_token_seconds_count{{path="warm"}} {all}
sessiond_time_to_first_token_seconds_sum{{path="warm"}} 1
# TYPE sessiond_kv_blocks gauge
sessiond_kv_blocks{{tier="disk",state="cached"}} 30
sessiond_kv_blocks{{tier="disk",state="free"}} 70
# TYPE sessiond_websocket_connections gauge
sessiond_websocket_connections 5
"""
CAPACITY = {
    "block_size": 16,
    "kv_bytes_per_token": 64,
    "total_blocks": 100,
    "free_blocks": 25,
    "cached_blocks": 25,
    "active_blocks": 50,
    "running": 2,
    "waiting": 1,
    "sessions": {"live": 3, "idle": 1, "parked": 0},
}
TTFT = "sessiond_time_to_first_token_seconds"


def session(name, **facts):
    return {
        "id": f"conv_{name}",
        "user": "ann",
        "state": "idle",
        "tier": "device",
        "tokens_total": 10,
        "tokens_kept": 8,
        "kv_bytes": {"device": 2048},
        "last_active_at": 100.0,
    } | facts


SESSIONS = [
    session("a", last_active_at=90.0, tokens_total=500),
    session("b", state="running", kv_bytes={"device": 4096}),
    session("c", user="eve", last_active_at=95.0),
]


def sample(at_s=102.0, *, tokens=100, reused=30, new=10, counts=(0, 0, 0), sessions=SESSIONS):
    fast, slow, count = counts
    text = SCRAPE.format(tokens=tokens, reused=reused, new=new, fast=fast, slow=slow, all=count)
    return Sample(at_s=at_s, values=read_values(text), capacity=CAPACITY, sessions=sessions)


def view_of(now, before=None, detail=None):
    between = Between(before, now)
    history = TopHistory().with_sample(now, between)
    return TopView(where="http://x", sample=now, between=between, history=history, detail=detail)


def page(state=None, *, width=160, height=40, before=None, detail=None, now=None):
    view, state = view_of(now or sample(), before, detail), state or TopState()
    console = Console(width=width, height=height, highlight=False)
    with console.capture() as captured:
        console.print(top_page(view, state, ConsoleDimensions(width, height)))
    return captured.get()


class TestBetween:
    def test_rates_are_of_the_time_between(self):
        between = Between(sample(100.0), sample(102.0, tokens=150, reused=90, new=20))
        assert between.rate("sessiond_generated_tokens_total") == 25.0
        assert between.rate("sessiond_prefill_tokens_total") == 35.0
        assert between.rate("sessiond_prefill_tokens_total", source="reused") == 30.0

    def test_a_server_that_was_started_again_has_no_negative_rate(self):
        assert (
            Between(sample(100.0), sample(102.0, tokens=3)).rate("sessiond_generated_tokens_total")
            == 0.0
        )

    def test_quantiles_are_read_as_prometheus_does(self):
        between = Between(sample(100.0, counts=(5, 5, 5)), sample(counts=(15, 20, 25)))
        assert between.quantile(TTFT, 0.25, path="warm") == pytest.approx(0.05)
        assert between.quantile(TTFT, 0.625, path="warm") == pytest.approx(0.3)
        assert between.quantile(TTFT, 0.99, path="warm") == 0.5  # beyond the last bound

    def test_no_observation_no_quantile(self):
        between = Between(sample(100.0, counts=(5, 5, 5)), sample(counts=(5, 5, 5)))
        assert between.quantile(TTFT, 0.5, path="warm") is None
        assert between.quantile(TTFT, 0.5, path="cold") is None

    def test_the_first_look_has_quantiles_of_the_past_and_no_rates(self):
        between = Between(None, sample(counts=(10, 10, 10)))
        assert between.quantile(TTFT, 0.5, path="warm") == pytest.approx(0.05)
        assert between.rate("sessiond_generated_tokens_total") == 0.0


class TestKeys:
    def test_sequences_have_names(self):
        assert split_keys("q\x1b[A\x1bOB\r\x7f\x1bö\x03") == [
            "q", "up", "down", "enter", "backspace", "escape", "ö", "interrupt",
        ]  # fmt: skip


def press(keys, state=None, sessions=SESSIONS):
    """Press keys one by one; the last state, and all orders."""
    state, orders = state or TopState(), []
    for key in keys:
        state, order = on_key(state, key, shown(state, sessions))
        orders += [order] if order else []
    return state, orders


class TestState:
    def test_sessions_are_chosen_up_and_down_and_not_beyond(self):
        ids = [each["id"] for each in shown(TopState(), SESSIONS)]
        assert ids == ["conv_b", "conv_c", "conv_a"]
        for keys, chosen in [(["down"], 0), (["down"] * 9, 2), (["down", "down", "up"], 0)]:
            assert press(keys)[0].chosen == ids[chosen]
        assert press(["down"], sessions=[])[0].chosen is None

    @pytest.mark.parametrize(
        ("presses", "first"), [(0, "conv_b"), (1, "conv_b"), (2, "conv_a"), (3, "conv_c")]
    )
    def test_orders_of_sessions(self, presses, first):
        state, _ = press(["s"] * presses)
        assert shown(state, SESSIONS)[0]["id"] == first

    @pytest.mark.parametrize(("key", "action"), [("r", "reset"), ("p", "park"), ("c", "close")])
    def test_an_action_is_asked_for_before_it_is_done(self, key, action):
        assert press(["down", key])[0].asked == action
        assert press(["down", key, "n"])[1] == []
        state, orders = press(["down", key, "y"])
        assert (orders, state.asked) == ([Order(action, "conv_b")], None)

    def test_an_action_needs_a_session(self):
        state, orders = press(["c", "y"])
        assert orders == []
        assert press(["c"])[0].message == "choose a session first, with ↑ and ↓"
        assert state.message == ""

    def test_a_search_takes_letters_that_are_commands_elsewhere(self):
        state, _ = press(["/", "e", "v", "q", "backspace", "e", "enter"])
        assert [each["id"] for each in shown(state, SESSIONS)] == ["conv_c"]
        assert not state.leaving
        assert press(["/", "e", "escape"])[0].wanted == ""

    def test_leaving(self):
        assert press(["q"])[0].leaving
        assert press(["interrupt"])[0].leaving


class TestPage:
    def test_all_that_there_is_to_see(self):
        text = page(before=sample(100.0, tokens=0))
        for said in (
            "50 active  25 cached  25 free  of 100 blocks (100 KiB)",
            "disk 30 of 100 blocks",
            "2 running, 1 waiting",
            "in memory 3 sessions, 1 idle, 0 parked",
            "sockets 5",
            "50.0 tokens generated",
            "conv_b",
            "by active",
        ):
            assert said in text

    def test_the_bar_is_divided_as_the_pool_is(self):
        shown_page = top_page(view_of(sample()), TopState(), ConsoleDimensions(160, 40))
        bar = shown_page.renderables[1]
        widths = [span.end - span.start for span in bar.spans if bar.plain[span.start] == "█"]
        assert widths == [24, 12, 12]

    def test_a_narrow_terminal_cuts_ids_and_no_line_wraps(self):
        sessions = [session("0123456789abcdef" * 2)]
        text = page(width=100, now=sample(sessions=sessions))
        assert "conv_01234567…" in text
        assert "2.0 KiB" in text
        assert all(len(line) <= 100 for line in text.splitlines())

    def test_a_low_terminal_shows_the_chosen_one(self):
        many = [session(f"{n:03}", last_active_at=float(n)) for n in range(100)]
        state = TopState(chosen="conv_050")
        text = page(state, height=24, now=sample(sessions=many))
        assert "conv_050" in text
        assert len(text.splitlines()) <= 24

    def test_a_session_is_inspected_with_its_turns(self):
        turn = {"response_id": "resp_1", "role": "user", "start": 0, "tokens": 7, "kept": 7}
        detail = session("a", policy="sliding_window", fidelity="exact", turns=[turn])
        text = page(TopState(chosen="conv_a", inspecting=True), detail=detail)
        assert "policy sliding_window, exact" in text
        assert "resp_1" in text
        assert "conv_b" not in text

    def test_foreign_text_has_no_control_characters(self):
        text = page(now=sample(sessions=[session("a", user="\x1b[2Jeve")]))
        assert "\x1b[2J" not in text

    @pytest.mark.parametrize(
        ("state", "said"),
        [
            (TopState(asked="close", chosen="conv_a"), "close conv_a? y: yes"),
            (TopState(typing=True, wanted="ev"), "search: ev"),
            (TopState(message="no server answers"), "no server answers"),
        ],
    )
    def test_the_last_line_says_what_is_going_on(self, state, said):
        assert said in page(state).splitlines()[-1]


def test_lines_of_blocks():
    assert spark([0, 1, 2], most=2) == "▁▅█"
    assert spark([0, 0]) == "▁▁"
    assert len(spark(range(100))) == 24
