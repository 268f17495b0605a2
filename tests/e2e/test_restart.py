"""A server that is stopped and started again on the same data: its disk tier has the KV."""

import signal

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from tests.e2e.support import (
    BLOCK,
    assert_all_blocks_come_back,
    capacity_of,
    total,
    total_input,
    wait_until,
)

GREEDY = {"temperature": 0, "max_output_tokens": 16}
FIRST = "Tell me one thing about the sea. " * 12
SECOND = "And one about the mountains?"


@pytest.fixture
async def undisturbed(server):
    async with LoadClient(server.url, **GREEDY) as client:
        turns = [await client.ask(FIRST), await client.ask(SECOND), await client.ask(SECOND)]
    return [turn.text for turn in turns]


@pytest.mark.parametrize("killed", [False, True])
async def test_a_conversation_goes_on_after_a_restart_without_being_computed_again(
    tmp_path, url, undisturbed, killed
):
    with running_server(tmp_path, db=url) as first_run:
        async with LoadClient(first_run.url, **GREEDY) as client:
            before = await client.ask(FIRST)
        if killed:  # what it had time to write through is there all the same
            stored, nothing = total(before) // BLOCK - 1, {"disk_blocks": 0}
            wait_until(lambda: (capacity_of(first_run) or nothing)["disk_blocks"] >= stored)
            first_run.process.send_signal(signal.SIGKILL)
            first_run.process.wait()
    with running_server(tmp_path, db=url) as second_run:
        rebuilt, warm = await two_more(second_run, before)
        assert_all_blocks_come_back(second_run)
    assert [turn.text for turn in (before, rebuilt, warm)] == undisturbed
    stats = rebuilt.end.stats
    assert (stats.restored_from, stats.reused_tokens) == ("disk", 0)
    assert stats.restored_tokens >= total(before) - 2 * BLOCK
    assert stats.restored_tokens + stats.recomputed_tokens + stats.new_tokens == total_input(
        rebuilt
    )
    assert warm.end.stats.reused_tokens >= total(rebuilt) - BLOCK


async def test_without_tiers_it_is_computed_again_and_told_so(tmp_path, undisturbed):
    """Field case T15: what was recomputed is not called reused, and what was reused is counted."""
    with running_server(tmp_path, ["--disk-tier-size", "0"]) as first_run:
        async with LoadClient(first_run.url, **GREEDY) as client:
            before = await client.ask(FIRST)
    with running_server(tmp_path, ["--disk-tier-size", "0"]) as second_run:
        rebuilt, warm = await two_more(second_run, before)
    assert [turn.text for turn in (before, rebuilt, warm)] == undisturbed
    stats = rebuilt.end.stats
    assert (stats.reused_tokens, stats.restored_tokens, stats.restored_from) == (0, 0, "none")
    assert abs(stats.recomputed_tokens - total(before)) <= BLOCK
    assert warm.end.stats.reused_tokens >= total(rebuilt) - BLOCK
    assert warm.end.stats.recomputed_tokens <= BLOCK


async def two_more(server, before):
    async with LoadClient(server.url, **GREEDY) as client:
        client.tip = before.end.tip
        return await client.ask(SECOND), await client.ask(SECOND)
