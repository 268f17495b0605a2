"""Random sequences of operations on a small pool, each reply compared with a dense model's."""

import random
from collections.abc import Callable

from engine.ipc.messages import Edit, Sampling, Terms, TurnDone, TurnFailed, TurnIncomplete
from policies.registry import BUILT_IN
from tests.fakes.fake_model import FakeText
from tests.harness.loop import Engine
from tests.laws.backend import Backend, position_free
from tests.laws.drafting import OracleDrafts
from tests.laws.expected_session import Expected
from tests.laws.faulty_runner import Faulty
from tests.laws.shifted import ShiftedContext

_NAMES = [f"s{number}" for number in range(7)]
_CLOSE = [3, 4]
_MAX_TOKENS = 220
_POOL_TOKENS = 240
_MAX_REPLAY_TOKENS = 400
_BLOCK_SIZE = 8  # or the next larger that the backend has


class RandomOperations:
    """One run; the same seed gives the same run."""

    def __init__(
        self, backend: Backend, sampling: Sampling, seed: int, *, drafting: bool = False
    ) -> None:
        self.backend = backend
        self.sampling = sampling
        self.random = random.Random(seed)
        self.faults: list[Faulty] = []
        self.seed = seed
        self.drafting = drafting
        self.block_size = min(size for size in backend.block_sizes if size >= _BLOCK_SIZE)
        self.engine = self.new_engine()
        self.sessions: dict[str, Expected] = {}
        self.ended = 0
        self.faulted = False
        self.drafts_used = 0
        self.drafts_discarded = 0
        self.shifted_turns = 0
        self.rebuilt_turns = 0
        self.held_back = 0
        blocks = -(-4 * _MAX_TOKENS // self.block_size) * 4
        self.apart = position_free(backend).runner(blocks, self.block_size)

    def new_engine(self, **settings: object) -> Engine:
        engine = Engine(
            num_blocks=_POOL_TOKENS // self.block_size,
            runner=self._runner,
            block_size=self.block_size,
            max_num_seqs=4,
            max_num_batched_tokens=24,
            max_num_waiting=3,
            max_replay_tokens=_MAX_REPLAY_TOKENS,
            placement_policy=sorted(BUILT_IN)[self.seed % len(BUILT_IN)],
            **settings,
        )
        if self.drafting:
            engine.draft_with(OracleDrafts(self.backend, self.seed))
        return engine

    def _runner(self, num_blocks: int, block_size: int) -> Faulty:
        self.faults.append(Faulty(self.backend.runner(num_blocks, block_size)))
        return self.faults[-1]

    def choices(self) -> dict[Callable[[], None], int]:
        """Operations and how often each is done."""
        return {
            self.step: 45,
            self.rest: 1,
            self.open: 3,
            self.submit: 20,
            self.fork: 4,
            self.truncate: 4,
            self.release: 3,
            self.close: 1,
            self.shorten: 1,
            self.shift: 5,
            self.hint: 2,
            self.raise_priority: 1,
            self.cancel: 3,
            self.fail: 1,
        }

    def run(self, operations: int) -> None:
        choices = self.choices()
        actions, weights = list(choices), list(choices.values())
        for number in range(operations):
            self.random.choices(actions, weights)[0]()
            self.settle()
            if number % 50 == 0:
                self.engine.check()
        while self.engine.loop.step() or any(session.turn for session in self.sessions.values()):
            self.settle()
        self.engine.check()
        assert all(session.turn is None for session in self.sessions.values())
        assert self.ended > operations / 100
        self.check_coverage(operations)
        for name in list(self.sessions):
            self.engine.close(name)
        self.engine.run()
        assert self.engine.stats().active_blocks == 0
        self.engine.check()

    def check_coverage(self, operations: int) -> None:
        """The run has met what it is about."""
        stats = self.engine.stats()
        if self.drafting:
            assert stats.accepted_drafts_total > 0
            assert stats.rejected_drafts_total > 0
        if operations >= 1000:
            assert stats.preemptions_total > 0
            assert stats.evictions_total
            assert stats.prefix_hits_total > 0
            assert self.drafts_used > 0
            assert self.drafts_discarded > 0
            assert self.shifted_turns > 0
            assert self.rebuilt_turns > 0
            assert self.held_back > 0

    # --- operations

    def step(self) -> None:
        if not self.engine.loop.step():
            self.engine.clock.advance(self.engine.loop.rest_s or 0)

    def rest(self) -> None:
        """Nobody comes until all is done, work in advance of turns included."""
        self.engine.run()

    def open(self) -> None:
        name = self.random.choice(_NAMES)
        if self._busy(name):
            return
        ids = self._ids(self.random.choice([0, 0, 8, 17, 40]))
        self.engine.open(name, ids, salt=b"one tenant")
        self.sessions[name] = Expected(ids)

    def submit(self) -> None:
        name = self.random.choice(_NAMES)
        session = self.sessions.get(name)
        prompt = self._ids(self.random.choice([0, 1, 7, 8, 9, 30, 60]))
        output = self.random.choice([1, 4, 20, 60])
        if session is None or len(session.ids) + len(prompt) + output > _MAX_TOKENS:
            return
        generate = self.random.random() < 0.9
        background = self.random.random() < 0.15
        drafts = self._drafts(name)
        if self.random.random() < 0.5:  # what was guessed comes true
            prompt = drafts + prompt
        turn = self.engine.submit(
            name,
            prompt,
            sampling=self.sampling,
            stop_ids=[self.backend.stop_id],
            close_ids=_CLOSE,
            draft_ids=self._ids(self.random.choice([0, 1, 5, 5])),
            max_output_tokens=output,
            generate=generate,
            background=background,
            terms=Terms(
                priority=self.random.randrange(3), weight=self.random.choice([0.5, 1.0, 4.0])
            ),
        )
        if isinstance(self.engine.ending(turn), TurnFailed):
            empty = not session.ids and not prompt
            full = self.engine.loop.queue
            assert session.turn is not None or empty or full.foreground_count == 7, (
                self.engine.ending(turn)
            )
            return
        self.drafts_used += bool(drafts) and prompt[: len(drafts)] == drafts
        self.drafts_discarded += bool(drafts) and prompt[: len(drafts)] != drafts
        session.turn, session.prompt, session.generate = turn, prompt, generate
        session.max_output_tokens, session.background = output, background

    def fork(self) -> None:
        parent, child = self.random.sample(_NAMES, 2)
        if parent not in self.sessions or self._busy(child):
            return
        of = self.sessions[parent]
        length = self.random.randint(0, len(of.ids))
        self.engine.fork(child, parent, length)
        forked = Expected(of.ids.copy(), of.history.copy(), of.edits.copy(), of.sealed)
        forked.cut(length)
        self.sessions[child] = forked

    def truncate(self) -> None:
        name = self.random.choice(_NAMES)
        if name not in self.sessions or self._busy(name):
            return
        session = self.sessions[name]
        length = self.random.randint(0, len(session.ids))
        self.engine.truncate(name, length)
        session.cut(length)

    def shorten(self) -> None:
        """An exact edit."""
        name = self.random.choice(_NAMES)
        if name not in self.sessions or self._busy(name):
            return
        ids = self.sessions[name].ids
        for start, stop in reversed(self._spans(len(ids))):
            del ids[start:stop]
        self.engine.open(name, ids, salt=b"one tenant")
        self.sessions[name] = Expected(ids)

    def shift(self) -> None:
        name = self.random.choice(_NAMES)
        if name not in self.sessions or self._busy(name):
            return
        session = self.sessions[name]
        edit = Edit(at=len(session.ids), dropped=tuple(self._spans(len(session.ids))))
        self.engine.edit(name, edit)
        session.edit(edit)

    def _spans(self, length: int) -> list[tuple[int, int]]:
        edges = sorted(self.random.sample(range(length + 1), min(length + 1, 4)))
        spans = list(zip(edges[::2], edges[1::2], strict=False))
        return spans[: self.random.choice([1, 2])]

    def release(self) -> None:
        self.engine.release(self.random.choice(_NAMES))

    def close(self) -> None:
        name = self.random.choice(_NAMES)
        if not self._busy(name):
            self.engine.close(name)
            self.sessions.pop(name, None)

    def cancel(self) -> None:
        name = self.random.choice(_NAMES)
        if self._busy(name):
            turn = self.sessions[name].turn
            self.engine.cancel(turn, keep=self.random.random() < 0.5)

    def fail(self) -> None:
        self.faults[-1].fail_next = self.random.choice(["before", "after"])
        self.faulted = True

    # --- what came of them

    def hint(self) -> None:
        if self.sessions:
            ttl_s = self.random.choice([None, 0.0, 100.0])
            name = self.random.choice(sorted(self.sessions))
            self.engine.hint(name, ttl_s=ttl_s, priority=self.random.randrange(3))

    def raise_priority(self) -> None:
        self.engine.raise_priority(self.random.choice(_NAMES))

    def settle(self) -> None:
        for name, session in self.sessions.items():
            ending = self.engine.ending(session.turn) if session.turn else None
            if ending is not None:
                self._judge(session, ending)
                self.engine.events.pop(session.turn)
                session.turn = None
                self.ended += 1
            if session.turn is None:
                assert self.engine.view(name).tokens == len(session.ids)

    def _judge(self, session: Expected, ending: object) -> None:
        started = self.engine.started(session.turn)
        at_start = started is not None and started.rebuilt_exact
        if at_start or ending.counts.rebuilt_exact:
            session.forget_edits()
            self.rebuilt_turns += 1
        if ending.counts.rebuilt_exact and started is not None and not at_start:
            if not isinstance(ending, TurnFailed) and ending.kept_ids:
                session.add(session.prompt + ending.kept_ids)
            return  # the first tokens are of another context than the last
        before = session.ids + session.prompt
        match ending:
            case TurnFailed(code="queue_full"):
                assert session.background
                self.held_back += 1
                return
            case TurnFailed(code=code):
                assert code == "internal_error"
                assert self.faulted
                return
            case TurnDone() | TurnIncomplete(reason="max_output_tokens"):
                assert ending.kept_ids == self._reply(session, before) + _CLOSE
            case TurnIncomplete(reason="cancelled", rolled_back=True):
                assert ending.kept_ids == []
                return
            case TurnIncomplete(reason="memory_pressure"):
                reply = ending.kept_ids[:-2]
                assert reply == self._reply(session, before)[: len(reply)]
            case TurnIncomplete(reason="cancelled"):
                assert ending.kept_ids[-2:] == _CLOSE
                reply = ending.kept_ids[:-2]
                assert reply == self._reply(session, before)[: len(reply)]
                sent = b"".join(FakeText().token_bytes(token) for token in reply)
                assert ending.text == sent.decode(errors="replace")
            case _:
                raise AssertionError(ending)
        counts = ending.counts
        told = counts.reused_tokens + counts.restored_tokens + counts.recomputed_tokens
        assert told + counts.new_tokens in (0, len(before))
        session.add(session.prompt + ending.kept_ids)

    def _reply(self, session: Expected, before: list[int]) -> list[int]:
        if not session.generate:
            return []
        if session.edits:
            self.shifted_turns += 1
            return self._shifted_reply(session)
        reply = self.backend.reply(
            before,
            sampling=self.sampling,
            max_output_tokens=session.max_output_tokens,
            stop_ids=[self.backend.stop_id],
        )
        return reply[:-1] if reply[-1] == self.backend.stop_id else reply

    def _shifted_reply(self, session: Expected) -> list[int]:
        if not session.prompt and session.sealed == len(session.ids):
            return []  # cancelled before it began
        context = ShiftedContext(self.apart, self.block_size)
        taken = 0
        for edit in session.edits:
            count = edit.at - len(context.ids)
            context.feed(session.history[taken : taken + count])
            context.edit(edit)
            taken += count
        return context.reply(
            session.history[taken:] + session.prompt,
            self.sampling,
            self.backend.stop_id,
            session.max_output_tokens,
            [],
        )

    def _drafts(self, name: str) -> list[int]:
        context = self.engine.loop.memory.contexts[name]
        return context.draft_ids[: context.drafted]

    def _busy(self, name: str) -> bool:
        return name in self.sessions and self.sessions[name].turn is not None

    def _ids(self, length: int) -> list[int]:
        # Few different prompts, so that sessions share prefixes.
        draw = random.Random(self.random.randrange(4))
        return [draw.randrange(self.backend.vocab_size) for _ in range(length)]
