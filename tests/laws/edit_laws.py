"""Laws of edits: what is left of a conversation is what the edit said, wherever its KV lies."""

import pytest

from engine.ids import SessionId
from engine.ipc.messages import Edit, Sampling, SetContext
from tests.harness.loop import Engine
from tests.laws.backend import position_free
from tests.laws.law_suite import LawSuite
from tests.laws.shifted import ShiftedContext

_CLOSE = [1, 2]
_FRONT = 20  # ids that every edit keeps: not a multiple of a block

EDITS = [  # of a context of 100 ids or more
    pytest.param([(20, 50)], id="one span"),
    pytest.param([(32, 64)], id="whole blocks"),
    pytest.param([(20, 25), (40, 41), (43, 70)], id="several, some in one block"),
    pytest.param([(0, 33)], id="the front, too"),
]


class Played:
    """A session of the engine, and the same context computed apart."""

    def __init__(self, suite: LawSuite, engine: Engine, sampling: Sampling) -> None:
        self.suite, self.engine, self.sampling = suite, engine, sampling
        size = engine.config.block_size
        self.right = ShiftedContext(position_free(suite.backend).runner(300, size), size)
        self.all_ids: list[int] = []
        self.edits: list[Edit] = []
        engine.open("a")

    def turn(self, length: int, seed: int, *, session: str = "a") -> None:
        prompt = self.suite.prompt(length, seed)
        kept = self.suite.turn(self.engine, session, prompt, self.sampling)
        stop_id = self.suite.backend.stop_id
        assert kept == self.right.reply(prompt, self.sampling, stop_id, 20, _CLOSE)
        self.all_ids += [*prompt, *kept]

    def edit(self, spans: list[tuple[int, int]]) -> None:
        edit = Edit(at=len(self.right.ids), dropped=tuple(spans))
        self.engine.edit("a", edit)
        self.right.edit(edit)
        self.edits.append(edit)
        assert self.engine.view("a").tokens == len(self.right.ids)

    def fill_pool(self) -> None:
        """Take every block, so that what was released is overwritten."""
        self.engine.open("other")
        slots = self.engine.stats().total_blocks * self.engine.config.block_size
        self.suite.turn(self.engine, "other", self.suite.prompt(slots - 24, 3), self.sampling)
        self.engine.close("other")


class EditLaws(LawSuite):
    def test_exact_is_a_fresh_prefill_of_the_kept_text(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            engine.open("a")
            ids = self.prompt(70)
            ids += self.turn(engine, "a", ids, sampling)
            kept = ids[:_FRONT] + ids[55:]
            engine.open("a", kept)
            more = self.prompt(20, 9)
            turn = self.submit(engine, "a", more, sampling)
            engine.run()
            assert engine.kept(turn) == self.expected(kept + more, sampling)
            started = engine.started(turn)
            assert started.reused_tokens == _FRONT
            assert started.recomputed_tokens == len(kept) - _FRONT
            assert not started.rebuilt_exact

    @pytest.mark.parametrize("spans", EDITS)
    def test_shifted_is_the_kv_there_was_at_its_new_place(
        self, sampling: Sampling, spans: list[tuple[int, int]]
    ) -> None:
        with self.engine() as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit(spans)
            played.turn(20, 1)
            played.turn(7, 2)

    def test_shifted_again_and_again(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            played = Played(self, engine, sampling)
            played.turn(60, 0)
            for number in range(1, 7):
                played.turn(5 * number, number)
                end = len(played.right.ids)
                played.edit([(_FRONT + number, _FRONT + 4 * number), (end - 9, end - 6)])
            played.turn(30, 9)

    @pytest.mark.parametrize("spans", EDITS)
    def test_shifted_and_lost_is_shifted_undisturbed(
        self, sampling: Sampling, spans: list[tuple[int, int]]
    ) -> None:
        with self.engine(num_blocks=20) as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit(spans)
            played.turn(20, 1)
            played.edit([(_FRONT, 31)])
            engine.release("a")
            played.fill_pool()
            played.turn(7, 2)
            engine.release("a")
            played.fill_pool()
            played.turn(3, 3)

    def test_shifted_and_released_is_hit_again(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(25, 60)])
            played.turn(20, 1)
            computed = engine.stats().recomputed_tokens_total
            engine.release("a")
            played.turn(5, 2)
            assert engine.stats().recomputed_tokens_total - computed < 20, "what fills no block"

    def test_shifted_and_restarted_is_shifted_undisturbed(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(25, 60)])
            played.turn(20, 1)
            played.edit([(30, 50)])
        with self.engine() as engine:
            played.engine = engine
            engine.loop.handle(
                SetContext(
                    session=SessionId("a"),
                    salt=b"",
                    ids=played.all_ids,
                    computed=len(played.all_ids),
                    edits=tuple(played.edits),
                )
            )
            played.turn(20, 2)

    def test_a_long_history_is_rebuilt_exact_and_told(self, sampling: Sampling) -> None:
        with self.engine(num_blocks=20, max_replay_tokens=80) as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(25, 60)])
            played.turn(20, 1)
            engine.release("a")
            played.fill_pool()
            ids, more = played.right.ids, self.prompt(7, 2)
            for keep in (False, True):
                turn = self.submit(engine, "a", more, sampling)
                if not keep:
                    engine.step()
                    engine.cancel(turn, keep=False)
                engine.run()
                assert engine.started(turn).rebuilt_exact, "until a turn is kept"
            assert engine.kept(turn) == self.expected(ids + more, sampling)
            turn = self.submit(engine, "a", more, sampling)
            engine.run()
            assert not engine.started(turn).rebuilt_exact

    def test_parts_of_blocks_that_take_the_whole_pool_are_rebuilt_exact(
        self, sampling: Sampling
    ) -> None:
        with self.engine(num_blocks=9) as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(at, at + 10) for at in range(6, 106, 16)][: len(played.right.ids) // 16])
            ids, more = played.right.ids, self.prompt(40, 2)
            turn = self.submit(engine, "a", more, sampling)
            engine.run()
            assert engine.started(turn).rebuilt_exact
            assert engine.kept(turn) == self.expected(ids + more, sampling)

    def test_a_fork_of_a_shifted_session_is_a_copy(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(25, 60)])
            played.turn(20, 1)
            engine.fork("b", "a", len(played.right.ids))
            more = self.prompt(5, 7)
            ours = self.submit(engine, "b", more, sampling)
            theirs = self.submit(engine, "a", more, sampling)
            engine.run()
            right = played.right.reply(more, sampling, self.backend.stop_id, 20, _CLOSE)
            assert engine.kept(ours) == engine.kept(theirs) == right

    def test_preempted_while_shifted_is_uninterrupted(self, sampling: Sampling) -> None:
        with self.engine(num_blocks=14) as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(25, 60)])
            engine.open("b")
            other = self.submit(engine, "b", self.prompt(60, 5), sampling, stop=False, output=60)
            prompt = self.prompt(20, 1)
            turn = self.submit(engine, "a", prompt, sampling)
            engine.run()
            right = played.right.reply(prompt, sampling, self.backend.stop_id, 20, _CLOSE)
            assert engine.kept(turn) == right
            assert engine.kept(other) == self.expected(
                self.prompt(60, 5), sampling, stop=False, output=60
            )

    def test_a_turn_rolled_back_after_an_edit_leaves_the_edit(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(25, 60)])
            cut = self.submit(engine, "a", self.prompt(30, 4), sampling, stop=False, output=50)
            engine.step(3)
            engine.cancel(cut, keep=False)
            played.turn(20, 1)
