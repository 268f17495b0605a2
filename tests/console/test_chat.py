"""The chat panel holds a real conversation and tells what each turn did to the memory."""

import asyncio
import re

import pytest
from playwright.async_api import expect

from sessiond.domain import PolicyChoice
from tests.api.hooks import Cancels, Steps
from tests.api.test_tiers import tiers
from tests.console.console import memory_of

pytestmark = [pytest.mark.second, pytest.mark.asyncio(loop_scope="session")]

SEA = "Say something about the sea, the wind and the birds above it."


async def response_of(person, session, at=-1):
    """The response of a session's last turn, as the API tells it."""
    async with person.http() as http:
        view = (await http.get(f"/v1/sessions/{session}")).json()
        turn = [one for one in view["turns"] if one["role"] != "system"][at]["response_id"]
        return (await http.get(f"/v1/responses/{turn}")).json()


def parts_of(response):
    """What a card has to show: zero parts are left out, but for reused and new."""
    memory, usage = response["sessiond"], response["usage"]
    parts = {name: memory[f"{name}_tokens"] for name in ("reused", "restored", "recomputed")}
    parts["new"] = usage["input_tokens"] - sum(parts.values())
    return {name: value for name, value in parts.items() if value or name in {"reused", "new"}}


async def test_each_turn_shows_its_reply_and_where_its_input_came_from(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        person = anyone(running)
        await console["#chat-instructions"].evaluate("e => { e.value = 'Be brief.'; }")
        for text in (SEA, "and more"):
            card = await console.turn(text)
            session = await console.chat_session()
            response = await response_of(person, session)
            assert await memory_of(card) == parts_of(response)
            assert await card.locator(".asked").text_content() == text
            said = response["output"][0]["content"][0]["text"]
            assert await card.locator(".reply").text_content() == said
            words = await card.locator(".speed").text_content()
            assert f"reply {response['usage']['output_tokens']}" in words
            assert f"{response['sessiond']['blocks']} block" in words
        assert (await memory_of(card))["reused"] > 0
        assert response["instructions"] == "Be brief."
        await expect(console["#announcer"]).to_have_text(re.compile("^Reply: "))


async def test_what_comes_back_from_a_tier_is_shown(stack, open_console, anyone, tmp_path):
    options = {"tiers": tiers(tmp_path / "kv", host=80, disk=80)}
    async with stack(**options) as running, open_console(running) as console:
        await console.turn(SEA * 3)
        session = await console.chat_session()
        async with anyone(running).http() as http:
            await http.post(f"/v1/sessions/{session}/park")
        for block in (await running.stats()).tiers.values():
            assert block.capacity_blocks == 80
        # others take what the device still has of it
        for _ in range(4):
            await anyone(running).chat("Something else altogether. " * 25)
        card = await console.turn("and more")
        response = await response_of(anyone(running), session)
        assert await memory_of(card) == parts_of(response)


async def test_what_a_policy_drops_is_told(stack, open_console, anyone):
    policy = PolicyChoice(type="last_turns", parameters={"turns": 1})
    async with stack(policy=policy) as running, open_console(running) as console:
        await console.turn(SEA)
        await console.turn("and more")
        card = await console.turn("and still more")
        dropped = card.locator(".notes .dropped")
        await expect(dropped).to_contain_text("dropped 1 turn (")
        await expect(dropped).to_contain_text("exact): ")
        session = await console.chat_session()
        await console.inspect(session)
        strip = console["#session .strip"]
        await expect(strip).to_have_attribute("aria-label", re.compile("turns? not seen"))
        assert await strip.locator(".dropped").count() > 0


async def test_a_reply_is_stopped_and_the_conversation_goes_on(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        await console.turn(SEA)
        steps, cancels = Steps(running), Cancels(running)
        await console.say("and more")
        await expect(console["#chat-send"]).to_be_disabled()
        await console["#chat-stop"].click()
        await asyncio.wait_for(cancels.told.wait(), 60)
        steps.release()
        await expect(console[".turn"].nth(1).locator(".notes")).to_have_text("cut: cancelled")
        await console.turn("and still more")
        assert await console[".turn"].count() == 3


async def test_a_fault_is_told_in_words_and_the_next_turn_works(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        await console["#chat-limit"].evaluate("e => { e.value = '1000000'; }")
        card = await console.turn(SEA)
        await expect(card.locator(".fault")).to_contain_text("the whole pool has 4096")
        await console["#chat-limit"].evaluate("e => { e.value = '8'; }")
        await console.turn(SEA)
        steps = running.model.steps
        running.model.fail_at.update(range(steps, steps + 100))
        failed = await console.turn("and more")
        running.model.fail_at.clear()
        await expect(failed.locator(".fault")).not_to_be_empty()
        fine = await console.turn("and more")
        assert (await memory_of(fine))["new"] > 0


async def test_a_wrong_option_is_told_before_anything_is_sent(stack, open_console):
    async with stack() as running, open_console(running) as console:
        await console[".options summary"].click()
        await console["#chat-temperature"].fill("9")
        await console.say(SEA)
        await expect(console["#chat-fault"]).not_to_be_empty()
        await expect(console[".turn"]).to_have_count(0)
        await expect(console["#chat-input"]).to_have_value(SEA)
