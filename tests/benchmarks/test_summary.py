"""Ratios to the best peer."""

import pytest

from benchmarks.contest import Run
from benchmarks.schedule import Play
from benchmarks.summary import summarise


def run(server, repetition=0, **columns):
    return Run(play=Play(repetition, "W1", server), figures=columns)


def cell(cells, server, column):
    (found,) = [cell for cell in cells if (cell.server, cell.column) == (server, column)]
    return found


def test_the_best_peer_of_each_column_is_the_measure():
    cells = summarise(
        [
            run("sessiond", tok_s=200, itl_ms=3),
            run("llama-q4_0", tok_s=80, itl_ms=9),
            run("vllm-bf16", tok_s=100, itl_ms=20),
        ]
    )
    rate, between = cell(cells, "sessiond", "tok_s"), cell(cells, "sessiond", "itl_ms")
    assert (rate.best_peer, rate.ratios["vllm-bf16"]) == ("vllm-bf16", pytest.approx(2))
    assert (between.best_peer, between.ratios["llama-q4_0"]) == ("llama-q4_0", pytest.approx(1 / 3))
    assert rate.ratios["llama-q4_0"] == pytest.approx(2.5)
    assert cell(cells, "vllm-bf16", "tok_s").best_peer is None


def test_ratios_are_of_geometric_means_and_the_spread_is_kept():
    cells = summarise(
        [
            run("sessiond", 0, tok_s=100),
            run("sessiond", 1, tok_s=400),
            run("llama-q4_0", 0, tok_s=50),
            run("llama-q4_0", 1, tok_s=50),
        ]
    )
    ours = cell(cells, "sessiond", "tok_s")
    assert ours.ratios["llama-q4_0"] == pytest.approx(4)
    assert (ours.runs, ours.median, ours.lowest, ours.highest) == (2, 250, 100, 400)


def test_our_kernels_are_no_peer():
    cells = summarise([run("sessiond", decode_8=900), run("sessiond-kernels", decode_8=1000)])
    assert cell(cells, "sessiond", "decode_8").best_peer is None


def test_a_run_that_failed_has_no_columns():
    failed = Run(play=Play(0, "W1", "vllm-bf16"), fault="it ended")
    assert [cell.server for cell in summarise([failed, run("sessiond", tok_s=1)])] == ["sessiond"]
