"""Each panel shows what the API says."""

import asyncio
import re
import time

import pytest
from playwright.async_api import expect

from engine.ipc.client import GetStats
from tests.api.test_tiers import tiers
from tests.console.console import number
from tests.fakes.fake_model import Draw

pytestmark = [pytest.mark.second, pytest.mark.asyncio(loop_scope="session")]

SEA = "Say something about the sea, the wind and the birds above it. " * 3
SYSTEM = "You are brief."


async def legend(console):
    shown = {}
    for entry in await console["#pool-legend li"].all():
        shown[await entry.get_attribute("data-state")] = number(
            await entry.locator("b").text_content()
        )
    return shown


async def pixel(console, block, columns, cell):
    """The colour of a block's cell on the canvas."""
    x, y = (block % columns) * cell + cell // 3, (block // columns) * cell + cell // 3
    return await console["#pool-canvas"].evaluate(
        """(canvas, [x, y]) => {
            const ratio = canvas.width / canvas.clientWidth;
            const context = canvas.getContext("2d");
            return [...context.getImageData(x * ratio, y * ratio, 1, 1).data.slice(0, 3)];
        }""",
        [x, y],
    )


async def colour_of(console, selector):
    text = await console[selector].first.evaluate("e => getComputedStyle(e).backgroundColor")
    return [int(part) for part in re.findall(r"\d+", text)][:3]


async def test_the_pool_is_drawn_block_by_block(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        person = anyone(running)
        first, second = await person.chat(SEA, instructions=SYSTEM), await person.chat("hi")
        await person.chat("And the sky?", previous_response_id=first[0]["id"])
        async with person.http() as http:
            pool = (await http.get("/admin/pool")).json()
            held = dict.fromkeys(pool["sessions"], 0)
            for name in held:
                view = (await http.get(f"/v1/sessions/{name}")).json()
                held[name] = view["blocks"]["device"]
        states = {"free": "f", "cached": "c", "active": "a", "shared": "s", "moving": "m"}
        counted = {name: pool["states"].count(letter) for name, letter in states.items()}
        shown = console['#pool-legend li[data-state="active"] b']
        await expect(shown).to_have_text(str(counted["active"]))
        assert await legend(console) == counted
        words = await console["#pool-canvas"].get_attribute("aria-label")
        assert f"{counted['free']} free, {counted['cached']} cached" in words
        await expect(console["#pool-sum"]).to_contain_text("256 blocks of 16 tokens")
        width = await console["#pool-canvas"].evaluate("e => e.clientWidth")
        columns = width // 16
        for state, letter in states.items():
            if letter in pool["states"]:
                block = pool["states"].index(letter)
                colour = await colour_of(console, f"#pool-legend .state-{state}")
                assert await pixel(console, block, columns, 16) == colour, state
        holders = await console[".holder"].all_text_contents()
        assert len(holders) == len(held)
        session = second[0]["conversation"]["id"]
        mine = next(text for text in holders if text.startswith(session))
        assert mine.startswith(f"{session}{held[session]} · ")


async def test_a_session_has_one_colour_wherever_it_is_shown(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        session = (await anyone(running).chat(SEA))[0]["conversation"]["id"]
        await expect(console.row(session)).to_be_visible()
        await expect(console[f'.holder[data-session="{session}"]']).to_be_visible()
        await console['label:has(input[value="session"])'].click()
        colour = await colour_of(console, f'.holder[data-session="{session}"] .swatch')
        assert await colour_of(console, f'tr[data-key="{session}"] .swatch') == colour
        columns = await console["#pool-canvas"].evaluate("e => e.clientWidth") // 16
        assert await pixel(console, 0, columns, 16) == colour
        box = await console["#pool-canvas"].bounding_box()
        await console.page.mouse.move(box["x"] + 5, box["y"] + 5)
        await expect(console["#pool-tip"]).to_have_text(f"block 0 · active · {session}")
        await console.page.mouse.click(box["x"] + 5, box["y"] + 5)
        await expect(console["#session-title"]).to_contain_text(session)


async def test_figures_and_charts_follow_the_metrics(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        await expect(console["#figures .value"].first).to_have_text("0 %")
        await anyone(running).chat(SEA, "and more", "and more still")
        stats = await running.engine.ask(GetStats())
        sessions = console["#figures div:nth-child(2)"]
        await expect(sessions.locator(".value")).to_have_text(str(stats.contexts))
        kept = stats.reused_tokens_total + stats.restored_tokens_total
        total = kept + stats.new_tokens_total + stats.recomputed_tokens_total
        reused = console["#figures div:nth-child(6) .value"]
        await expect(reused).to_have_text(f"{round(100 * kept / total)} %")
        for name, line in (("First token", "warm"), ("Tokens per second", "written")):
            chart = console[".chart"].filter(has_text=name)
            await expect(chart.locator("svg")).to_have_attribute(
                "aria-label", re.compile(f"{name}: {line} [0-9]")
            )
            assert await chart.locator("circle").count() > 0


async def written_through(running):
    """The numbers once the disk, which is written in idle time, has what the host has."""
    async with asyncio.timeout(60):
        while True:
            stats = await running.engine.ask(GetStats())
            if stats.tiers["disk"].blocks == stats.tiers["host"].blocks > 0:
                return stats
            await asyncio.sleep(0.02)


async def test_tiers_show_what_lies_in_them_and_what_moves(stack, open_console, anyone, tmp_path):
    options = {"num_blocks": 32, "tiers": tiers(tmp_path / "kv", host=40, disk=80)}
    async with stack(**options) as running, open_console(running) as console:
        rows = console["#tier-table tbody tr"]
        await expect(rows).to_have_count(3)
        session = (await anyone(running).chat(SEA))[0]["conversation"]["id"]
        async with anyone(running).http() as http:
            await http.post(f"/v1/sessions/{session}/park")
            stats = await written_through(running)
            view = (await http.get(f"/v1/sessions/{session}")).json()
        names = await rows.locator("th").all_text_contents()
        assert names == ["device", "host", "disk"]
        for row, tier in ((1, "host"), (2, "disk")):
            cells = rows.nth(row).locator("td")
            taken = stats.tiers[tier]
            await expect(cells.nth(1)).to_have_text(f"{taken.blocks} / {taken.capacity_blocks}")
        heads = await console["#session-table thead th"].all_text_contents()
        cells = console.row(session).locator("th, td")
        host = cells.nth(heads.index("Host"))
        await expect(host).to_have_text(str(view["blocks"]["host"]))
        await expect(console.row(session).locator(".state")).to_have_text(["parked", "parked"])


async def test_tiers_that_are_not_there_are_not_shown(stack, open_console):
    async with stack() as running, open_console(running) as console:
        await expect(console["#tier-table tbody th"]).to_have_text(["device"])


async def test_sessions_are_listed_searched_and_inspected(stack, open_console, anyone):
    async with stack() as running, open_console(running) as console:
        person = anyone(running)
        await expect(console["#sessions-empty"]).to_contain_text("No session is open")
        replies = await person.chat(SEA, "and more", instructions=SYSTEM)
        other = (await person.chat("hi"))[0]["conversation"]["id"]
        session = replies[0]["conversation"]["id"]
        path = f"/v1/sessions/{session}?include=page_table"
        await expect(console["#sessions-count"]).to_have_text("2")
        view, cells = await agreed(person, console, path)
        assert cells["State"] == view["state"] == "idle"
        assert number(cells["Tokens"]) == view["tokens_total"]
        await console["#session-search"].fill(session)
        await expect(console.row(other)).to_have_count(0)
        await expect(console["#sessions-count"]).to_have_text("1 of 2")
        await console["#session-search"].fill("no such session")
        await expect(console["#sessions-empty"]).to_have_text("No session matches the search.")
        await console["#session-search"].fill("")
        await console["#session-state"].select_option("running")
        await expect(console.row(session)).to_have_count(0)
        await console["#session-state"].select_option("idle")
        await console.inspect(session)
        facts = await console.facts()
        assert facts["Context"] == f"{view['tokens_kept']} of {view['tokens_total']} tokens seen"
        assert facts["Device"].startswith(f"{view['blocks']['device']} blocks")
        await expect(console["#session .told"]).to_have_text(SYSTEM)
        turns = await console["#session table[aria-label=Turns] tbody tr"].all()
        assert len(turns) == len(view["turns"])
        await assert_page_table(console, view)


async def agreed(person, console, path):
    """A session as the API and its row tell it, once both tell the same blocks.

    Work that is done in idle time, and the page's next look, come a little later.
    """
    async with asyncio.timeout(60), person.http() as http:
        while True:
            view = (await http.get(path)).json()
            cells = await console.cells(view["id"])
            blocks = (str(view["blocks"]["device"]), str(view["blocks"]["shared"]))
            if (cells["Device"], cells["Shared"]) == blocks:
                return view, cells
            await asyncio.sleep(0.05)


async def assert_page_table(console, view):
    """Entries as the API has them, each with the turns whose tokens it holds."""
    ends, at = [], 0
    for turn in view["turns"]:
        at += turn["kept"]
        ends.append((at, turn["role"]))
    rows = console["#session table.pages tbody tr:not(.spacer)"]
    begin = 0
    for index, entry in enumerate(view["page_table"][:6]):
        texts = await rows.nth(index).locator("td").all_text_contents()
        numbers = [str(entry[name]) for name in ("block", "first", "last", "base")]
        assert texts[:4] == numbers
        after = begin + entry["last"] - entry["first"] + 1
        assert texts[4] == f"{begin}–{after - 1}"
        for (end, role), start in zip(ends, [0, *(end for end, _ in ends)], strict=False):
            word = "instructions" if role == "system" else role
            assert (word in texts[5]) or not (start < after and end > begin)
        assert texts[6] == str(entry["references"])
        begin = after


async def test_a_turn_that_runs_is_seen_to_run(stack, open_console, anyone):
    draw = Draw(stop_every=0)
    async with stack(draw=draw) as running, open_console(running) as console:
        slow_down(running.model)
        async with anyone(running).socket() as line:
            await line.create("hold on", max_output_tokens=3000)
            created = await line.hear("response.created")
            session = created["response"]["conversation"]["id"]
            await expect(console.row(session).locator("span.state")).to_have_text("running")
            await expect(console["#figures div:nth-child(3) .value"]).to_have_text("1")
            await line.say(type="response.cancel", response_id=created["response"]["id"])
            await line.hear("response.incomplete")
            await expect(console.row(session).locator("span.state")).to_have_text("idle")
            await expect(console["#figures div:nth-child(3) .value"]).to_have_text("0")


def slow_down(model):
    """Steps that take a moment, between which the engine answers."""
    execute = model.execute

    def slowly(batch):
        time.sleep(0.01)
        return execute(batch)

    model.execute = slowly
