"""A whole server that is killed and started again under an open console."""

import asyncio

import pytest
from playwright.async_api import expect

from benchmarks.server_process import ServerProcess
from tests.console.console import Console, memory_of

pytestmark = [
    pytest.mark.second,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.e2e,
    pytest.mark.real_model,
]


async def test_the_page_says_so_and_both_go_on(browser, tmp_path):
    server = ServerProcess(tmp_path)
    await asyncio.to_thread(server.start)
    try:
        context = await browser.new_context()
        console = await Console.open(context, server.url)
        await console.turn("What is the sea?")
        session = await console.chat_session()
        await asyncio.to_thread(server.kill)
        await expect(console["#away-text"]).to_contain_text("does not answer")
        await expect(console["#chat-fault"]).to_contain_text("the connection was lost")
        await asyncio.to_thread(server.start)
        await console.retry()
        await expect(console["#away"]).to_be_hidden()
        card = await console.turn("And the sky?")
        assert await console.chat_session() == session
        parts = await memory_of(card)
        assert parts.get("restored", 0) + parts.get("recomputed", 0) > 0
        assert console.faults == []
        await context.close()
    finally:
        await asyncio.to_thread(server.stop)
