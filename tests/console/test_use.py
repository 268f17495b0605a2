"""By keyboard alone, in both themes, at several widths, with many sessions."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEA = "Say something about the sea, the wind and the birds above it. " * 3

FINDINGS = (Path(__file__).parent / "findings.js").read_text(encoding="utf-8")

NAMELESS = (Path(__file__).parent / "nameless.js").read_text(encoding="utf-8")


async def full_page(console, person):
    """All panels with something in them."""
    await person.chat(SEA, "and more", instructions="Be brief.")
    await console.turn("hello")
    await console.turn("and more")
    await console.inspect(await console.chat_session())


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1280), ("dark", 1280), ("light", 800), ("dark", 800), ("dark", 400)],
)
async def test_all_is_legible_and_nothing_overlaps(stack, open_console, anyone, scheme, width):
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    async with stack() as running, open_console(running, **options) as console:
        await full_page(console, anyone(running))
        assert await console.page.evaluate(FINDINGS) == []
        assert await console.page.evaluate(NAMELESS) == []
        await console.act(await console.chat_session(), "Close…")
        assert await console.page.evaluate(FINDINGS) == []


async def test_the_theme_follows_the_system_until_it_is_chosen(stack, open_console):
    async with stack() as running, open_console(running, color_scheme="dark") as console:
        back = "getComputedStyle(document.documentElement).backgroundColor"
        await expect(console["#theme"]).to_have_text("Light theme")
        dark = await console.page.evaluate(back)
        await console.page.emulate_media(color_scheme="light")
        await expect(console["#theme"]).to_have_text("Dark theme")
        light = await console.page.evaluate(back)
        assert dark != light
        await console["#theme"].click()
        assert await console.page.evaluate(back) == dark
        await console.page.reload()
        await expect(console["#theme"]).to_have_text("Light theme")
        assert await console.page.evaluate(back) == dark


async def test_nothing_moves_for_whom_that_is_unwelcome(stack, open_console):
    async with stack() as running, open_console(running, reduced_motion="reduce") as console:
        await expect(console["#server-state"]).to_have_text("Serving")
        moving = "document.getAnimations().length"
        assert await console.page.evaluate(moving) == 0


async def test_a_session_is_inspected_and_closed_by_keyboard_alone(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        person, press = anyone(running), console.page.keyboard.press
        sessions = [(await person.chat("hi"))[0]["conversation"]["id"] for _ in range(3)]
        await expect(console["#sessions-count"]).to_have_text("3")
        await press("Tab")
        await expect(console["a.skip"].first).to_be_focused()
        await press("Enter")
        for selector in ("#session-search", "#session-state"):
            await press("Tab")
            await expect(console[selector]).to_be_focused()
        ring = "getComputedStyle(document.activeElement).outlineStyle"
        assert await console.page.evaluate(ring) != "none"
        await press("Tab")
        await expect(console.row(sessions[2]).locator(".name")).to_be_focused()
        await press("ArrowDown")
        await press("ArrowDown")
        await expect(console.row(sessions[0]).locator(".name")).to_be_focused()
        await press("Enter")
        await expect(console["#session-title"]).to_be_focused()
        await expect(console["#session-title"]).to_contain_text(sessions[0])
        await console.row(sessions[0]).locator(".name").focus()
        await press("Tab")
        await press("Enter")
        await expect(console["#session-menu button"].first).to_be_focused()
        await press("Escape")
        await expect(console.row(sessions[0]).locator(".more")).to_be_focused()
        await press("Enter")
        await press("End")
        await press("Enter")
        await expect(console["#confirm-no"]).to_be_focused()
        await press("Tab")
        await press("Enter")
        await expect(console.row(sessions[0])).to_have_count(0)
        assert await console.page.evaluate("document.activeElement !== document.body")


async def test_the_chat_is_reached_and_used_by_keyboard_alone(stack, open_console):
    async with stack() as running, open_console(running) as console:
        press = console.page.keyboard.press
        await expect(console["#pool-sum"]).to_contain_text("256 blocks")
        await press("Tab")
        await press("Tab")
        await press("Enter")
        for _ in range(8):
            if await console.page.evaluate("document.activeElement.id") == "chat-input":
                break
            await press("Tab")
        await console.page.keyboard.type("one")
        await press("Shift+Enter")
        await console.page.keyboard.type("two")
        await press("Enter")
        await expect(console[".asked"]).to_have_text("one\ntwo")
        await expect(console["#announcer"]).to_have_text(re.compile("^Reply: |ended"))
        await expect(console["#chat-input"]).to_be_focused()


async def open_sessions(person, count):
    """Conversations in which nothing was said; the ids, in the order of their coming."""
    async with person.http() as http:
        return [(await http.post("/v1/conversations")).json()["id"] for _ in range(count)]


async def test_hundreds_of_sessions_are_few_rows_of_the_page(stack, open_console, anyone):
    async with stack() as running:
        sessions = await open_sessions(anyone(running), 250)
        async with open_console(running) as console:
            await expect(console["#sessions-count"]).to_have_text("250")
            rows = console["#session-table tbody tr:not(.spacer)"]
            assert await rows.count() < 40
            await expect(console["#session-table"]).to_have_attribute("aria-rowcount", "251")
            await rows.first.locator(".name").focus()
            await console.page.keyboard.press("End")
            await expect(console.row(sessions[0]).locator(".name")).to_be_focused()
            assert await rows.last.get_attribute("aria-rowindex") == "251"
            assert await rows.count() < 40
            await console["#session-search"].fill(sessions[123])
            await expect(console.row(sessions[123])).to_be_visible()
            await expect(console.row(sessions[0])).to_have_count(0)
