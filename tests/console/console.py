"""What a person does with the console, in short words."""

from playwright.async_api import expect

expect.set_options(timeout=30_000)

# what Chromium says of every answer that is no success, and of a server that is away
_OF_ANSWERS = "Failed to load resource"
_OF_SOCKETS = "WebSocket connection to"


class Console:
    """One page. `faults`: what its scripts and its content policy complained about."""

    def __init__(self, page):
        self.page = page
        self.faults = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._heard)

    @classmethod
    async def open(cls, context, url):
        console = cls(await context.new_page())
        await console.page.goto(f"{url}/console?every=0.25")
        return console

    def _heard(self, message):
        if message.type == "error" and not message.text.startswith((_OF_ANSWERS, _OF_SOCKETS)):
            self.faults.append(message.text)

    def __getitem__(self, selector):
        return self.page.locator(selector)

    async def use_key(self, key):
        await self["#key-input"].fill(key)
        await self.page.keyboard.press("Enter")

    async def retry(self):
        """Ask the server now. The page asks by itself, too, and may hide its button meanwhile."""
        await self["#away-retry"].dispatch_event("click")

    # --- sessions

    def row(self, session):
        return self[f'#session-table tr[data-key="{session}"]']

    async def cells(self, session):
        """What the table shows of a session, by its columns' names."""
        await expect(self.row(session)).to_be_visible()
        heads = await self["#session-table thead th"].all_text_contents()
        texts = await self.row(session).locator("th, td").all_text_contents()
        return dict(zip(heads, texts, strict=True))

    async def act(self, session, entry):
        """Choose an entry of a session's menu."""
        await self.row(session).locator(".more").click()
        await self.page.get_by_role("menuitem", name=entry).click()

    async def inspect(self, session):
        await self.row(session).locator(".name").click()
        await expect(self["#session-title"]).to_contain_text(session)
        await expect(self["#session .facts dt"].first).to_be_visible()

    async def facts(self):
        names = await self["#session .facts dt"].all_text_contents()
        values = await self["#session .facts dd"].all_text_contents()
        return dict(zip(names, values, strict=True))

    # --- chat

    async def say(self, text):
        await self["#chat-input"].fill(text)
        await self["#chat-input"].press("Enter")

    async def turn(self, text):
        """Say something and wait until its turn has ended; returns its card."""
        cards = await self[".turn"].count()
        await self.say(text)
        await expect(self[".turn"]).to_have_count(cards + 1)
        await expect(self["#chat-send"]).to_be_enabled()
        return self[".turn"].nth(cards)

    async def chat_session(self):
        title = await self["#chat-session button"].get_attribute("title")
        return title.removeprefix("Inspect ")


async def memory_of(card):
    """The parts of a turn's input, as its card shows them."""
    parts = {}
    for part in await card.locator(".part").all():
        name = await part.get_attribute("data-part")
        parts[name] = int((await part.locator("b").text_content()).replace(",", ""))
    return parts


def number(text):
    """A count as the page writes it."""
    return int(text.replace(",", ""))
