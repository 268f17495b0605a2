"""A server that is stopped and started again on the same database."""

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from tests.e2e.support import BLOCK, assert_all_blocks_come_back, total

GREEDY = {"temperature": 0, "max_output_tokens": 16}
FIRST = "Tell me one thing about the sea. " * 12
SECOND = "And one about the mountains?"


async def test_a_conversation_goes_on_after_a_restart_as_if_there_had_been_none(
    tmp_path, server, url
):
    async with LoadClient(server.url, **GREEDY) as client:
        undisturbed = [await client.ask(FIRST), await client.ask(SECOND), await client.ask(SECOND)]
    with running_server(tmp_path / "restarted", db=url) as first_run:
        async with LoadClient(first_run.url, **GREEDY) as client:
            before = await client.ask(FIRST)
    with running_server(tmp_path / "restarted", db=url) as second_run:
        async with LoadClient(second_run.url, **GREEDY) as client:
            client.tip = before.end.tip
            rebuilt, warm = await client.ask(SECOND), await client.ask(SECOND)
        assert_all_blocks_come_back(second_run)
    assert [turn.text for turn in (before, rebuilt, warm)] == [turn.text for turn in undisturbed]
    assert_reuse_is_told_honestly(before, rebuilt, warm)


def assert_reuse_is_told_honestly(before, rebuilt, warm):
    """Field case T15: what was recomputed is not called reused, and what was reused is counted."""
    assert rebuilt.end.stats.reused_tokens == 0
    assert abs(rebuilt.end.stats.recomputed_tokens - total(before)) <= BLOCK
    assert warm.end.stats.reused_tokens >= total(rebuilt) - BLOCK
    assert warm.end.stats.recomputed_tokens <= BLOCK
