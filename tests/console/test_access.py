"""Who sees what: keys, roles, text that is no HTML, a server that goes away."""

import pytest
from playwright.async_api import expect

from tests.api.tenants import Person
from tests.console.console import Console

pytestmark = [pytest.mark.second, pytest.mark.asyncio(loop_scope="session")]

CANARY = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\'"&amp;'


async def test_without_keys_it_opens_at_once(stack, open_console):
    async with stack() as running, open_console(running) as console:
        await expect(console["#pool"]).to_be_visible()
        await expect(console["#server-state"]).to_have_text("Serving")
        await expect(console["#model"]).to_have_text("fake")
        await expect(console["#key-dialog"]).to_be_hidden()
        await expect(console["#forget-key"]).to_be_hidden()


async def test_an_admins_key_is_asked_for_once_and_opens_everything(stack, open_console):
    async with stack(keys=True) as running, open_console(running) as console:
        root = await Person.join(running, "root", "admin")
        await expect(console["#key-input"]).to_be_focused()
        await expect(console["main"]).to_be_hidden()
        await console.page.keyboard.press("Escape")
        await console.use_key("sk-no.good")
        await expect(console["#key-fault"]).to_contain_text("API key")
        await console.use_key(root.key)
        await expect(console["#pool"]).to_be_visible()
        await console.turn("hello")
        await console.page.reload()
        await expect(console["#pool"]).to_be_visible()
        kept = await console.page.evaluate("[JSON.stringify(localStorage), document.cookie]")
        assert root.key not in "".join(kept)
        await console["#forget-key"].click()
        await expect(console["#key-dialog"]).to_be_visible()
        assert await console.page.evaluate("sessionStorage.length") == 0


async def test_an_admin_inspects_and_steers_others_sessions_and_takes_no_part(stack, open_console):
    async with stack(keys=True) as running:
        root, bob = await Person.join(running, "root", "admin"), await Person.join(running, "bob")
        [reply] = await bob.chat("a secret of bob's", instructions="bob's own")
        his = reply["conversation"]["id"]
        async with open_console(running, key=root.key) as console:
            cells = await console.cells(his)
            assert cells["User"] == bob.id
            await console.turn("hello")
            mine = await console.chat_session()
            await console.inspect(mine)
            tools = console["#session .tools button"]
            await expect(tools.first).to_have_text("Talk to it")
            await console[f'.holder[data-session="{his}"]'].click()
            await expect(console["#session .told"]).to_have_text("bob's own")
            await expect(tools.first).to_have_text("Set policy…")
            await console.act(his, "Park…")
            await console["#confirm-yes"].click()
            await expect(console["#notice-text"]).to_have_text(f"{his} was parked")
            assert "secret" not in await console["body"].text_content()


async def test_any_other_key_shows_its_users_sessions_and_the_chat(stack, open_console):
    async with stack(keys=True) as running:
        ada, bob = await Person.join(running, "ada"), await Person.join(running, "bob")
        [reply] = await bob.chat("a secret of bob's")
        async with open_console(running, key=ada.key) as console:
            await expect(console["#sessions-empty"]).to_contain_text("No session is open")
            for part in ("#pool", "#charts", "#tiers", "#figures"):
                await expect(console[part]).to_be_hidden()
            await console.turn("hello")
            mine = await console.chat_session()
            await expect(console.row(mine)).to_be_visible()
            await expect(console.row(reply["conversation"]["id"])).to_have_count(0)
            await console.inspect(mine)
            asked = await console.page.evaluate(
                "performance.getEntriesByType('resource').map((one) => one.name)"
            )
            assert not [url for url in asked if "/admin/pool" in url or "/metrics" in url]


async def test_a_key_that_is_revoked_is_asked_for_again(stack, open_console):
    async with stack(keys=True) as running:
        root, ada = await Person.join(running, "root", "admin"), await Person.join(running, "ada")
        async with open_console(running, key=ada.key) as console:
            await expect(console["#sessions-empty"]).to_be_visible()
            async with root.http() as http:
                await http.delete(f"/admin/users/{ada.id}/keys/{ada.key_id}")
            await expect(console["#key-dialog"]).to_be_visible()


async def test_what_people_write_is_text(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        running.model.script([*CANARY.encode(), 256])
        await console["#chat-instructions"].evaluate("(e, text) => { e.value = text; }", CANARY)
        card = await console.turn(CANARY)
        assert await card.locator(".asked").text_content() == CANARY
        assert await card.locator(".reply").text_content() == CANARY
        await console.inspect(await console.chat_session())
        assert await console["#session .told"].text_content() == CANARY
        await console["#session-search"].fill(CANARY)
        await expect(console["#sessions-empty"]).to_be_visible()
        assert await console.page.evaluate("window.pwned") is None
        assert await console["img[src=x], main script"].count() == 0


async def test_the_content_policy_holds_in_the_browser(stack, browser):
    async with stack() as running:
        context = await browser.new_context()
        console = await Console.open(context, running.served.http_url)
        await expect(console["#pool"]).to_be_visible()
        await console.page.evaluate(
            """() => {
                const script = document.createElement("script");
                try { script.textContent = "window.pwned = 1"; } catch { /* Trusted Types */ }
                document.body.append(script);
            }"""
        )
        assert await console.page.evaluate("window.pwned") is None
        refused = await console.page.evaluate(
            "fetch('http://127.0.0.1:9/').then(() => 'asked', (error) => String(error))"
        )
        assert refused != "asked"
        assert any("Content Security Policy" in fault for fault in console.faults)
        await context.close()


async def test_a_server_that_goes_away_is_told_and_found_again(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        await console.turn("hello")
        await console.page.context.set_offline(True)
        await expect(console["#away-text"]).to_contain_text("does not answer")
        await expect(console["#server-state"]).to_have_text("Not answering")
        await expect(console["#away-countdown"]).to_contain_text("Retrying in")
        await console.page.context.set_offline(False)
        await console.retry()
        await expect(console["#away"]).to_be_hidden()
        await expect(console["#server-state"]).to_have_text("Serving")
        card = await console.turn("and more")
        await expect(card.locator(".memory-bar")).to_be_visible()


async def test_an_engine_that_is_away_is_told_in_words(stack, open_console):
    async with stack() as running, open_console(running) as console:
        await expect(console["#pool-sum"]).to_contain_text("256 blocks")
        await running.engine.stop()
        await expect(console["#pool-fault"]).to_contain_text("the engine does not answer")
        await expect(console["#charts-fault"]).to_contain_text("the engine does not answer")
        await expect(console["#server-state"]).to_contain_text("engine unavailable")


async def test_a_drain_is_told(stack, open_console):
    async with stack() as running, open_console(running) as console:
        await console.turn("hello")
        running.served.gateway.connections.begin_drain()
        await expect(console["#server-state"]).to_have_text("Draining")
