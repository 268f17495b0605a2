from dataclasses import replace

import pytest

from sessiond.cli.chat_screen import Screen, describe_session, describe_stats, printable
from sessiond.cli.chat_turn import TurnEnd, TurnStats

STATS = TurnStats(
    reused_tokens=36,
    recomputed_tokens=0,
    new_tokens=14,
    output_tokens=20,
    ttft_s=0.123,
    total_s=1.0,
    tokens_per_s=31.24,
)

RESPONSE = f"resp_{'0123456789abcdef' * 2}"
TURN = {"response_id": RESPONSE, "status": "completed"}
SESSION = {
    "id": "conv_1",
    "state": "idle",
    "tokens_total": 50,
    "tokens_kept": 49,
    "blocks": {"device": 4, "shared": 1},
    "kv_bytes": {"device": 4 * 368640},
    "turns": [
        TURN | {"role": "user", "start": 0, "tokens": 30, "kept": 30},
        TURN | {"role": "assistant", "start": 30, "tokens": 20, "kept": 19},
    ],
}


def test_stats_say_what_was_reused_and_what_was_new():
    assert (
        describe_stats(STATS)
        == "reused 36 · new 14 · reply 20 tokens · first token 0.12 s · 31.2 tokens/s"
    )


def test_lost_kv_is_said():
    stats = TurnStats(
        reused_tokens=0,
        recomputed_tokens=36,
        new_tokens=14,
        output_tokens=1,
        ttft_s=None,
        total_s=1.0,
        tokens_per_s=None,
    )
    assert describe_stats(stats) == "reused 0 · recomputed 36 · new 14 · reply 1 tokens"


def test_kv_that_came_back_is_said_with_where_from():
    stats = replace(STATS, reused_tokens=0, restored_tokens=32, restored_from="disk")
    assert describe_stats(stats).startswith("reused 0 · restored 32 from disk · new 14")


def test_a_session_says_what_its_tiers_hold():
    blocks = {"device": 0, "shared": 0, "host": 0, "disk": 7}
    assert describe_session(SESSION | {"blocks": blocks}).endswith(" · 7 blocks in the disk tier")
    assert "tier" not in describe_session(SESSION)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("a\x07b\x9bc\rd", "abcd"),
        ("kept\n\tas it is: 你好 🙂", "kept\n\tas it is: 你好 🙂"),
    ],
)
def test_no_control_sequence_of_a_reply_reaches_the_terminal(text, shown):
    assert printable(text) == shown


def test_a_reply_is_never_read_as_markup(capsys):
    screen = Screen(interactive=False)
    screen.reply("[bold]not markup[/bold] :smile:")
    assert capsys.readouterr().out == "[bold]not markup[/bold] :smile:"


def test_scripts_find_only_replies_on_standard_output(capsys):
    screen = Screen(interactive=False)
    screen.reply("hello")
    screen.turn_end(TurnEnd(outcome="completed", stats=STATS))
    screen.problem("bad")
    captured = capsys.readouterr()
    assert captured.out == "hello\n"
    assert "reused 36" in captured.err
    assert "bad" in captured.err


def test_fault_says_where_the_conversation_stands(capsys):
    Screen(interactive=False).turn_end(
        TurnEnd(outcome="failed", code="engine_restarted", detail="restarted")
    )
    said = capsys.readouterr().err
    assert "engine_restarted" in said
    assert "as before this turn" in said


def test_inspect_is_a_table_with_sums(capsys):
    Screen(interactive=True).session(SESSION)
    shown = capsys.readouterr().out
    assert "50 tokens, 49 seen by the model · 4 blocks (1 shared) · 1.4 MiB" in shown
    assert [line.split() for line in shown.splitlines()[2:]] == [
        ["user", "0", "30", "30", "completed", RESPONSE],
        ["assistant", "30", "20", "19", "completed", RESPONSE],
    ]


def test_inspect_of_an_unexpected_answer_does_not_break(capsys):
    Screen(interactive=True).session({"turns": [{}]})
    assert "?" in capsys.readouterr().out
