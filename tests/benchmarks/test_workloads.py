"""Every server gets the same messages, and none has seen them before."""

import pytest

from benchmarks.workloads import W3, WORKLOADS, message
from engine.files.catalog import CATALOG, DEFAULT_MODEL
from engine.text.tokenizer import load_tokenizer


def test_a_message_is_the_same_whoever_asks_for_it():
    assert message("W1/0", 3, 2, 100) == message("W1/0", 3, 2, 100)


def test_no_two_messages_begin_alike_for_long():
    """Else a prefix cache would answer for one session what it computed for another."""
    openings = {
        message(seed, session, turn, 100)[:120]
        for seed in ("W3/0", "W3/1")
        for session in range(W3.sessions)
        for turn in range(W3.turns)
    }
    assert len(openings) == 2 * W3.sessions * W3.turns


@pytest.mark.real_model
def test_messages_have_the_length_that_is_asked_for():
    tokenizer = load_tokenizer(CATALOG[DEFAULT_MODEL].path())
    for tokens in (100, 200, 410, 4096):
        for session in range(8):
            assert abs(len(tokenizer.encode(message("x", session, 0, tokens))) - tokens) <= 8


def test_a_whole_session_fits_the_context_that_servers_are_given():
    for workload in WORKLOADS.values():
        tokens = workload.turns * (workload.message_tokens + workload.reply_tokens)
        assert tokens < workload.context_tokens <= 8192
