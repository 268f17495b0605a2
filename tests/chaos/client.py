"""One client of a run: operations at random, each with its own checks."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from tests.chaos.engine import POOL_TOKENS
from tests.chaos.talk import INSTRUCTIONS, Asked, Said, Talk
from tests.chaos.wire import Heard, Wire

# What a turn may be told while faults go on; all of it leaves the conversation as it was.
FAULTS = {
    "engine_restarted",
    "internal_error",
    "queue_full",
    "queue_timeout",
    "rate_limit_exceeded",
    "cut",
}
_MAX_TALKS = 4
_LONGEST = POOL_TOKENS - 368  # with a turn and its reply, in parts of blocks, it fits the pool
_HELD_S = 1.0
_PRIORITIES = ("high", "normal", "normal", "low")
RUNNING = ("running", "in_progress", "queued")
_WORDS = ["tell", "me", "more", "of", "the", "sea", "and", "its", "old", "ships,", "parrot"]


@dataclass(slots=True)
class Ledger:
    """What all clients have been told: for the checks at the end. `ended` counts turns."""

    acknowledged: dict[str, Said] = field(default_factory=dict)
    ended: int = 0
    completed: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)

    def count(self, heard: Heard) -> None:
        """A turn has ended."""
        self.ended += 1
        self.completed += heard.outcome in {"completed", "max_output_tokens"}
        self.outcomes[heard.outcome] = self.outcomes.get(heard.outcome, 0) + 1

    def did(self, operation: str) -> None:
        self.operations[operation] = self.operations.get(operation, 0) + 1


class Client:
    """Owns a socket and some conversations."""

    def __init__(self, wire: Wire, other: Wire, chance: random.Random, ledger: Ledger) -> None:
        self._wire = wire
        self._other = other
        self._chance = chance
        self._ledger = ledger
        self._talks: list[Talk] = []
        self._lanes = 0

    def choices(self) -> dict[Callable[[], Awaitable[None]], int]:
        """Operations and how often each is done."""
        return {
            self.open: 8,
            self.say: 30,
            self.fork: 6,
            self.fork_busy: 4,
            self.cancel: 6,
            self.cancel_at_once: 4,
            self.drop: 6,
            self.say_twice: 4,
            self.rewind: 3,
            self.park: 5,
            self.close: 2,
            self.all_at_once: 4,
            self.hint: 3,
        }

    async def operate(self) -> None:
        choices = self.choices()
        (operation,) = self._chance.choices(list(choices), list(choices.values()))
        for talk in [talk for talk in self._talks if len(talk.ids) > _LONGEST]:
            await self._end(talk)
        if not self._talks:
            operation = self.open
        await operation()
        self._ledger.did(operation.__name__)

    async def leave(self) -> None:
        await self._wire.close()
        await self._other.close()

    # --- operations ----------------------------------------------------------------------------

    async def open(self) -> None:
        """T01: one socket uses several conversations, one after another."""
        asked, talk = self._asked(), self._new_talk()
        frame = self._frame(asked, talk, instructions=INSTRUCTIONS)
        (heard,) = (await self._wire.exchange([frame])).values()
        if heard.session_id is None:
            self._ledger.count(heard)
            return
        talk.session_id = heard.session_id
        self._talks.append(talk)
        await self._settle(talk, [(asked, heard)])
        if not talk.said:
            self._talks.remove(talk)
        if len(self._talks) > _MAX_TALKS:
            await self._end(self._chance.choice(self._talks))

    async def say(self) -> None:
        """T24, T27, T28: whatever moved or was lost, a turn sees all that was said, no more."""
        talk = self._chance.choice(self._talks)
        asked = self._asked()
        heard = await self._wire.exchange([self._frame(asked, talk)])
        await self._settle(talk, [(asked, *heard.values())])

    async def fork(self) -> None:
        talk = self._chance.choice(self._talks)
        count = self._own_turn(talk)
        await self._fork(talk, count, [])

    async def fork_busy(self) -> None:
        """T16: children of a parent that writes."""
        talk = self._chance.choice(self._talks)
        parent = self._asked(60)
        await self._fork(talk, len(talk.said), [parent])

    async def cancel(self) -> None:
        """What was sent is kept, or nothing is."""
        await self._cancel(at_once=False)

    async def cancel_at_once(self) -> None:
        """T04: cancelled where it waits, and the session is free again."""
        await self._cancel(at_once=True)
        await self.say()

    async def drop(self) -> None:
        """T03: the socket is cut in the middle; the next turn sees nothing of it."""
        talk = self._chance.choice(self._talks)
        asked, left = self._asked(60), self._chance.randint(0, 8)

        def cut(_heard: dict[str, Heard], _event: dict) -> str | None:
            nonlocal left
            left -= 1
            return "cut" if left < 0 else None

        frame = self._frame(asked, talk)
        heard = await self._wire.exchange([frame], cut)
        await self._settle(talk, [(asked, *heard.values())])
        if talk in self._talks:
            await self.say()

    async def say_twice(self) -> None:
        """T18: a second turn from elsewhere is refused while the first runs."""
        talk = self._chance.choice(self._talks)
        first, second, begun = self._asked(60), self._asked(), asyncio.Event()

        def tell(_heard: dict[str, Heard], _event: dict) -> None:
            begun.set()

        async def begin() -> dict[str, Heard]:
            try:
                frame = self._frame(first, talk)
                return await self._wire.exchange([frame], tell)
            finally:
                begun.set()

        async with asyncio.TaskGroup() as both:
            running = both.create_task(begin())
            await begun.wait()
            late = await self._other.exchange([self._frame(second, talk)])
        heard = running.result()
        await self._settle(talk, [(first, *heard.values()), (second, *late.values())])

    async def all_at_once(self) -> None:
        """T31, T34: more than the pool holds; who was admitted is not refused any more."""
        asked = [self._asked(60) for _ in self._talks]
        talks = list(self._talks)
        frames = [self._frame(one, talk) for one, talk in zip(asked, talks, strict=True)]
        heard = await self._wire.exchange(frames)
        for talk, one, frame in zip(talks, asked, frames, strict=True):
            await self._settle(talk, [(one, heard[frame["stream_id"]])])

    async def rewind(self) -> None:
        """T13: back to an older turn; those behind it are gone from the context."""
        talk = self._chance.choice(self._talks)
        count = self._own_turn(talk)
        path = f"/v1/sessions/{talk.session_id}/reset"
        body = {"response_id": talk.said[count - 1].response_id}
        answer = await self._wire.ask("POST", path, body)
        assert answer.status_code == 200, answer.text
        for gone in talk.said[count:]:
            self._ledger.acknowledged.pop(gone.response_id, None)
        del talk.said[count:]
        await self.say()

    async def park(self) -> None:
        """T15, T27: KV goes to a tier, and what comes back is what went."""
        talk = self._chance.choice(self._talks)
        answer = await self._wire.ask("POST", f"/v1/sessions/{talk.session_id}/park")
        assert answer.status_code == 200, answer.text
        assert answer.json() == answer.json() | talk.hints, (answer.text, talk)
        await self.say()

    async def hint(self) -> None:
        """T11, T12: what is said of a session's future holds, whatever is lost; nobody is stuck."""
        talk = self._chance.choice(self._talks)
        retention = self._chance.choice(["release", "park", "hold"])
        hints = {"retention": retention, "priority": self._chance.choice(_PRIORITIES)}
        told = await self._wire.update(talk.session_id, {**hints, "ttl_s": _HELD_S})
        assert told == told | {"type": "session.updated", "session": talk.session_id, **hints}
        talk.hints = hints
        await self.say()

    async def close(self) -> None:
        await self._end(self._chance.choice(self._talks))

    # --- their parts ---------------------------------------------------------------------------

    async def _fork(self, talk: Talk, count: int, beside: list[Asked]) -> None:
        child = self._asked()
        base = talk.said[count - 1].response_id
        frames = [self._frame(asked, talk) for asked in beside]
        frames.append(self._frame(child, talk, previous_response_id=base))
        heard = list((await self._wire.exchange(frames)).values())
        turns = [(asked, one) for asked, one in zip(beside, heard, strict=False)]
        told = heard[-1]
        if told.session_id in (None, talk.session_id):  # the parent had become idle at its tip
            await self._settle(talk, [*turns, (child, told)])
            return
        fork = talk.up_to(count, told.session_id)
        await self._settle(talk, turns)
        await self._settle(fork, [(child, told)])
        if len(fork.said) > count and len(self._talks) < _MAX_TALKS:
            self._talks.append(fork)

    async def _cancel(self, *, at_once: bool) -> None:
        talk = self._chance.choice(self._talks)
        asked, keep = self._asked(100), self._chance.random() < 0.5
        awaited = "response.created" if at_once else "response.output_text.delta"
        sent = False

        def cancel(_heard: dict[str, Heard], event: dict) -> dict | None:
            nonlocal sent
            if sent or event["type"] != awaited:
                return None
            sent = True
            return {"type": "response.cancel", "keep": keep}

        frame = self._frame(asked, talk)
        heard = await self._wire.exchange([frame], cancel)
        await self._settle(talk, [(asked, *heard.values())], keep=keep)

    def _own_turn(self, talk: Talk) -> int:
        """A turn that was made in this conversation: it has one, or would not be kept."""
        return self._chance.randint(talk.inherited + 1, len(talk.said))

    async def _end(self, talk: Talk) -> None:
        """T01, T09: a conversation is closed, and nothing of it is left anywhere."""
        answer = await self._wire.ask("DELETE", f"/v1/sessions/{talk.session_id}")
        assert answer.status_code in (200, 404), answer.text
        gone = await self._wire.ask("GET", f"/v1/sessions/{talk.session_id}")
        assert gone.status_code == 404 or gone.json()["state"] == "closed", gone.text
        for said in talk.said:
            self._ledger.acknowledged.pop(said.response_id, None)
        self._talks.remove(talk)

    def _asked(self, max_output_tokens: int = 24) -> Asked:
        words = self._chance.choices(_WORDS, k=self._chance.choice([1, 3, 8]))
        return Asked(user=" ".join(words), max_output_tokens=max_output_tokens)

    def _new_talk(self) -> Talk:
        """T20, T21: of some the oldest turns are dropped, and of those some keep their KV."""
        return Talk(
            session_id="",
            last_turns=self._chance.choice([None, None, 2]),
            fidelity=self._chance.choice(["exact", "shifted"]),
        )

    def _frame(self, asked: Asked, talk: Talk, **where: object) -> dict:
        """T12: one turn is more urgent than another."""
        self._lanes += 1
        return {
            "stream_id": f"lane-{self._lanes}",
            "input": asked.user,
            "max_output_tokens": asked.max_output_tokens,
            "temperature": 0,
            "context_management": talk.policy,
            "metadata": {"priority": self._chance.choice(_PRIORITIES)},
            **(where or {"conversation": talk.session_id}),
        }

    # --- what came of them ---------------------------------------------------------------------

    async def _settle(
        self, talk: Talk, turns: list[tuple[Asked, Heard]], *, keep: bool = True
    ) -> None:
        """Take up what was told; ask the server where a fault left it open."""
        open_turns = []
        for sent, heard in turns:
            self._ledger.count(heard)
            asked = replace(sent, response_id=heard.response_id)
            match heard.outcome:
                case "completed" | "max_output_tokens":
                    assert heard.text == talk.right_reply(asked), (heard, talk, asked)
                    self._check_usage(talk, asked, heard)
                    self._add(talk, asked, heard.text)
                case "cancelled" | "memory_pressure" as reason:
                    assert talk.right_reply(asked).startswith(heard.text), (heard, talk)
                    if keep or reason == "memory_pressure":
                        self._add(talk, asked, heard.text)
                case "turn_in_progress":
                    assert len(turns) > 1 or open_turns, heard
                case "cut" if heard.response_id is None:
                    # it may be begun at any time from now on: nobody goes on with that one
                    if talk in self._talks:
                        self._talks.remove(talk)
                    return
                case code:
                    assert code in FAULTS, heard
                    assert code != "queue_full" or not heard.text, heard
                    open_turns.append(asked)
        if open_turns:
            for asked in open_turns:
                await self._end_of(asked)
            await self._look_up(talk, open_turns)

    async def _look_up(self, talk: Talk, asked: list[Asked]) -> None:
        """Whether a turn whose end was not told, or could not be stored, is there: whole or not."""
        found = await self._checkpoints(talk)
        known = [said.response_id for said in talk.said]
        if talk.last_turns is not None:  # the older ones are out of its sight
            known = known[known.index(found[0]) :] if set(known) & set(found) else []
        assert found[: len(known)] == known, (found, known)
        for response_id in found[len(known) :]:
            answer = (await self._wire.ask("GET", f"/v1/responses/{response_id}")).json()
            text = answer["output"][0]["content"][0]["text"] if answer["output"] else ""
            turn = next(one for one in asked if one.response_id in (None, response_id))
            right = talk.right_reply(turn)
            assert text == right, (answer, right)
            self._add(talk, replace(turn, response_id=response_id), text)

    async def _end_of(self, asked: Asked) -> None:
        """Wait until a turn has ended at the server, too."""
        path = f"/v1/responses/{asked.response_id}"
        while asked.response_id is not None:
            answer = await self._wire.ask("GET", path)
            if answer.status_code == 404 or answer.json()["status"] not in RUNNING:
                return

    async def _checkpoints(self, talk: Talk) -> list[str]:
        """Ids of the turns that are in the context, once nothing runs in it."""
        while True:
            answer = await self._wire.ask("GET", f"/v1/sessions/{talk.session_id}?limit=100")
            assert answer.status_code == 200 or not talk.said, answer.text
            view = answer.json()
            if answer.status_code == 404:
                return []
            assert view == view | talk.hints, (view, talk)
            if view["state"] not in RUNNING:
                break
        return [
            turn["response_id"] for turn in view["turns"] if turn["kept"] and turn["role"] == "user"
        ]

    def _check_usage(self, talk: Talk, asked: Asked, heard: Heard) -> None:
        """T15: what is said of reuse adds up, and never claims more than there was."""
        assert heard.end is not None
        response = heard.end["response"]
        usage, ours = response["usage"], response["sessiond"]
        told = len(heard.text) + (heard.outcome == "completed")  # T19; T24: its end counts once
        assert usage["output_tokens"] == told <= asked.max_output_tokens, (usage, heard)
        assert (heard.outcome == "completed") == (len(heard.text) < asked.max_output_tokens)
        cached = usage["input_tokens_details"]["cached_tokens"]
        assert usage["input_tokens"] == len(talk.prompt(asked.user)), (usage, talk)
        assert ours["context"] == ("trimmed" if talk.is_trimmed else "full"), (ours, talk)
        if talk.is_trimmed:
            assert "session.context_changed" in heard.events, (heard, talk)
        assert cached == ours["reused_tokens"] + ours["restored_tokens"]
        assert cached + ours["recomputed_tokens"] <= usage["input_tokens"]

    def _add(self, talk: Talk, asked: Asked, text: str) -> None:
        assert asked.response_id is not None
        said = Said(response_id=asked.response_id, user=asked.user, reply=text)
        talk.said.append(said)
        self._ledger.acknowledged[said.response_id] = said
