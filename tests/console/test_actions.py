"""What is done with a session through the console is done, and only after a question."""

import pytest
from playwright.async_api import expect

pytestmark = [pytest.mark.second, pytest.mark.asyncio(loop_scope="session")]

SEA = "Say something about the sea, the wind and the birds above it. " * 3


async def session_of(person, **fields):
    replies = await person.chat(SEA, "and more", **fields)
    return replies[0]["conversation"]["id"]


async def read(person, session):
    async with person.http() as http:
        return (await http.get(f"/v1/sessions/{session}")).json()


async def test_park_gives_up_the_blocks(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        session = await session_of(anyone(running))
        assert (await read(anyone(running), session))["blocks"]["device"] > 0
        await console.act(session, "Park…")
        await console["#confirm-yes"].click()
        await expect(console["#notice-text"]).to_have_text(f"{session} was parked")
        assert (await read(anyone(running), session))["blocks"]["device"] == 0
        await expect(console.row(session).locator("td").nth(4)).to_have_text("0")


async def test_reset_goes_back_to_the_instructions(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        session = await session_of(anyone(running), instructions="Be brief.")
        await console.inspect(session)
        await console["#session .tools button:text('Reset…')"].click()
        await expect(console["#confirm-title"]).to_have_text(f"Reset {session}?")
        await console["#confirm-yes"].click()
        await expect(console["#notice-text"]).to_have_text(f"{session} was reset")
        view = await read(anyone(running), session)
        assert view["instructions"] == "Be brief."
        assert view["tokens_kept"] < 20
        context = console["#session .facts dd"].first
        kept, total = view["tokens_kept"], view["tokens_total"]
        await expect(context).to_have_text(f"{kept} of {total} tokens seen")


async def test_close_deletes_for_good(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        session, other = await session_of(anyone(running)), await session_of(anyone(running))
        await console.inspect(session)
        await console.act(session, "Close…")
        await expect(console["#confirm-text"]).to_contain_text("can't be undone")
        await expect(console["#confirm-no"]).to_be_focused()
        await console["#confirm-yes"].click()
        await expect(console.row(session)).to_have_count(0)
        await expect(console.row(other)).to_have_count(1)
        await expect(console["#session"]).to_be_hidden()
        assert (await read(anyone(running), session))["state"] == "closed"


@pytest.mark.parametrize("answer", ["#confirm-no", "Escape"])
async def test_nothing_is_done_without_a_yes(stack, open_console, anyone, answer):
    async with stack() as running, open_console(running) as console:
        session = await session_of(anyone(running))
        before = await read(anyone(running), session)
        await console.act(session, "Reset…")
        if answer == "Escape":
            await console.page.keyboard.press("Escape")
        else:
            await console[answer].click()
        await expect(console["#confirm-dialog"]).to_be_hidden()
        await expect(console.row(session).locator(".more")).to_be_focused()
        assert await read(anyone(running), session) == before


async def test_policies_are_set_and_cleared_or_refused_in_words(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        session = await session_of(anyone(running))
        await console.act(session, "Set policy…")
        await console["#policy-type"].select_option("last_turns")
        await console["#policy-number"].fill("3")
        await console["#policy-fidelity"].select_option("shifted")
        await console["#policy-form button[type=submit]"].click()
        await expect(console["#policy-dialog"]).to_be_hidden()
        assert (await read(anyone(running), session))["policy"] == "last_turns"
        await expect(console.row(session).locator("td.policy")).to_have_text("last_turns")
        await console.act(session, "Set policy…")
        await expect(console["#policy-type"]).to_have_value("last_turns")
        await console["#policy-type"].select_option("")
        await console["#policy-form button[type=submit]"].click()
        await expect(console.row(session).locator("td.policy")).to_have_text("none")
        await console.act(session, "Set policy…")
        async with anyone(running).http() as http:
            await http.delete(f"/v1/sessions/{session}")
        await console["#policy-form button[type=submit]"].click()
        await expect(console["#policy-fault"]).to_contain_text("conversation")
        await console["#policy-cancel"].click()
        await expect(console["#policy-dialog"]).to_be_hidden()


async def test_a_refusal_is_told_in_the_servers_words(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        session = await session_of(anyone(running))
        await expect(console.row(session)).to_be_visible()
        await console.row(session).locator(".more").click()
        async with anyone(running).http() as http:
            await http.delete(f"/v1/sessions/{session}")
        await console.page.get_by_role("menuitem", name="Reset…").click()
        await console["#confirm-yes"].click()
        await expect(console["#notice-text"]).to_contain_text(f"{session} was not reset: ")
        await expect(console["#notice-text"]).to_contain_text("conversation")


async def test_a_session_can_be_talked_to(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        session = await session_of(anyone(running))
        await console.act(session, "Talk to it")
        await expect(console["#chat-input"]).to_be_focused()
        await console.turn("and still more")
        assert await console.chat_session() == session
        view = await read(anyone(running), session)
        assert view["usage"]["turns"] == 3
