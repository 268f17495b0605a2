"""By keyboard alone, in both themes, at several widths, with many sessions."""

import re

import pytest
from playwright.async_api import expect

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEA = "Say something about the sea, the wind and the birds above it. " * 3

# Text whose contrast with what lies behind it is under WCAG's 4.5, and what lies beyond its card.
FINDINGS = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const found = rgb(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] > 0.99) return found;
    }
    return [255, 255, 255];
  };
  const findings = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    const box = node.getBoundingClientRect();
    if (!own || !box.width || !node.checkVisibility() || node.closest(".unseen, noscript, :disabled, .skip")) continue;
    const [front, back] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) findings.push(`${node.className || node.tagName} ${node.textContent.slice(0, 20)}: ${ratio.toFixed(1)}`);
  }
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) findings.push(`the page is ${over} px too wide`);
  const cards = [...document.querySelectorAll(".card, .figures, .bar")].filter((one) => one.checkVisibility());
  for (const card of cards) {
    for (const child of card.querySelectorAll("h2, h3, button, b, dd, p, input, select")) {
      if (!child.checkVisibility() || child.closest(".viewport, .turns, .unseen")) continue;
      const [inner, outer] = [child.getBoundingClientRect(), card.getBoundingClientRect()];
      if (inner.right > outer.right + 1 || inner.left < outer.left - 1) findings.push(`${child.textContent.slice(0, 20)} leaves its card`);
    }
  }
  const boxes = cards.map((one) => [one.id, one.getBoundingClientRect()]);
  for (const [name, a] of boxes) for (const [other, b] of boxes) {
    if (name >= other || name === "" || other === "") continue;
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) findings.push(`${name} over ${other}`);
  }
  return findings;
}"""

# Controls without a name, images without a text, headings that leave out a level.
NAMELESS = """() => {
  const findings = [];
  for (const node of document.querySelectorAll("button, input, select, textarea, [role=img], canvas, meter")) {
    if (!node.checkVisibility()) continue;
    const name = node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent.trim();
    if (!name) findings.push(node.outerHTML.slice(0, 80));
  }
  let before = 0;
  for (const head of document.querySelectorAll("h1, h2, h3")) {
    if (!head.checkVisibility()) continue;
    const level = Number(head.tagName[1]);
    if (level > before + 1) findings.push(`${head.textContent} skips a level`);
    before = level;
  }
  for (const id of ["main", "header.bar", "nav[aria-label]"]) {
    if (document.querySelectorAll(id).length !== 1) findings.push(`no one ${id}`);
  }
  return findings;
}"""


async def full_page(console, person):
    """All panels with something in them."""
    await person.chat(SEA, "and more", instructions="Be brief.")
    await console.turn("hello")
    await console.turn("and more")
    await console.inspect(await console.chat_session())


@pytest.mark.parametrize("width", [1280, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
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
