"""Where KV lies never changes a token: the laws, for any model that has a Backend."""

from itertools import pairwise

import pytest

from engine.ipc.messages import Sampling, TurnFailed
from tests.laws.edit_laws import EditLaws
from tests.laws.random_operations import RandomOperations
from tests.laws.tier_laws import TierLaws
from tests.soak import SOAK


class EngineLaws(EditLaws, TierLaws):
    def test_paged_is_dense(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            engine.open("a")
            ids: list[int] = []
            for number, length in enumerate([1, 15, 16, 17, 33, 64]):
                ids += self.prompt(length, number)
                kept = self.turn(engine, "a", self.prompt(length, number), sampling)
                assert kept == self.expected(ids, sampling), f"turn {number}"
                ids += kept

    @pytest.mark.parametrize("chunk", [1, 7, 16, 512])
    def test_any_chunk_and_block_size_gives_the_same_tokens(
        self, sampling: Sampling, chunk: int, block_size: int
    ) -> None:
        prompt = self.prompt(60)
        with self.engine(
            max_num_batched_tokens=chunk, max_num_seqs=1, block_size=block_size, num_blocks=200
        ) as engine:
            engine.open("a")
            assert self.turn(engine, "a", prompt, sampling) == self.expected(prompt, sampling)

    def test_batched_is_alone(self, sampling: Sampling) -> None:
        with self.engine(num_blocks=200, max_num_batched_tokens=48) as engine:
            prompts = [self.prompt(length) for length in (1, 5, 16, 31, 48, 70)]
            turns = []
            for number, prompt in enumerate(prompts):
                engine.open(f"s{number}")
                turns.append(self.submit(engine, f"s{number}", prompt, sampling))
                engine.step()
            engine.run()
            for turn, prompt in zip(turns, prompts, strict=True):
                assert engine.kept(turn) == self.expected(prompt, sampling)

    def test_forked_is_copied(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            first = self.prompt(40)
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
            for length in (0, 1, 16, 31, 32, 40, len(ids)):
                engine.fork(f"f{length}", "a", length)
            more = self.prompt(20, 9)
            children = {
                length: self.submit(engine, f"f{length}", more, sampling)
                for length in (0, 1, 16, 31, 32, 40, len(ids))
            }
            parent = self.submit(engine, "a", more, sampling)
            engine.run()
            assert engine.kept(parent) == self.expected(ids + more, sampling)
            for length, turn in children.items():
                assert engine.kept(turn) == self.expected(ids[:length] + more, sampling), length

    def test_preempted_is_uninterrupted(self, sampling: Sampling) -> None:
        with self.engine(num_blocks=12) as engine:
            prompts = [self.prompt(60, seed) for seed in range(3)]
            turns = []
            for number, prompt in enumerate(prompts):
                engine.open(f"s{number}")
                turns.append(
                    self.submit(engine, f"s{number}", prompt, sampling, stop=False, output=40)
                )
            engine.run()
            assert engine.stats().preemptions_total > 0
            for turn, prompt in zip(turns, prompts, strict=True):
                assert engine.kept(turn) == self.expected(prompt, sampling, stop=False, output=40)

    @pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 32, 45])
    def test_rewound_never_happened(self, sampling: Sampling, length: int) -> None:
        with self.engine() as engine:
            first, more = self.prompt(40), self.prompt(20, 1)
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
            engine.truncate("a", length)
            assert self.turn(engine, "a", more, sampling) == (
                self.expected(ids[:length] + more, sampling)
            )

    @pytest.mark.parametrize("steps", [0, 1, 2, 4, 9])
    def test_rolled_back_never_happened(self, sampling: Sampling, steps: int) -> None:
        with self.engine(max_num_batched_tokens=32) as engine:
            first, more = self.prompt(40), self.prompt(50, 1)
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
            cut = self.submit(engine, "a", self.prompt(60, 2), sampling, stop=False, output=100)
            for _ in range(steps):
                engine.loop.step()
            engine.cancel(cut, keep=False)
            assert self.turn(engine, "a", more, sampling) == self.expected(ids + more, sampling)

    def test_released_is_resident(self, sampling: Sampling) -> None:
        with self.engine(num_blocks=16) as engine:
            first, more = self.prompt(40), self.prompt(20, 1)
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
            engine.release("a")
            engine.open("other")
            self.turn(engine, "other", self.prompt(220, 3), sampling)  # takes every block
            assert self.turn(engine, "a", more, sampling) == self.expected(ids + more, sampling)

    def test_evicted_is_resident(self, sampling: Sampling) -> None:
        with self.engine(num_blocks=16) as engine:
            first, more = self.prompt(40), self.prompt(20, 1)
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
            engine.open("other")
            self.turn(engine, "other", self.prompt(220, 3), sampling)
            assert engine.stats().evictions_total
            assert self.turn(engine, "a", more, sampling) == self.expected(ids + more, sampling)

    def test_set_again_is_never_stopped(self, sampling: Sampling) -> None:
        first, more = self.prompt(40), self.prompt(20, 1)
        with self.engine() as engine:
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
        with self.engine() as engine:
            engine.open("a", ids)
            assert self.turn(engine, "a", more, sampling) == self.expected(ids + more, sampling)

    @pytest.mark.parametrize("caching", [True, False])
    @pytest.mark.parametrize("retain", [True, False])
    def test_neither_retention_nor_prefix_cache_changes_a_token(
        self, sampling: Sampling, caching: bool, retain: bool
    ) -> None:
        with self.engine(enable_prefix_caching=caching, retain_kv=retain) as engine:
            engine.open("a")
            engine.open("b")
            ids: list[int] = []
            for number in range(4):
                prompt = self.prompt(20, number)
                ids += prompt
                kept = self.turn(engine, "a", prompt, sampling)
                assert kept == self.expected(ids, sampling)
                assert self.turn(engine, "b", prompt, sampling) == kept
                ids += kept

    @pytest.mark.parametrize("right", [True, False])
    def test_drafted_is_prefilled_with_its_turn(self, sampling: Sampling, right: bool) -> None:
        with self.engine() as engine:
            prompts = [self.prompt(length, length) for length in (30, 7, 23, 12, 40, 9, 3, 18)]
            engine.open("a")
            ids: list[int] = []
            for number, (prompt, following) in enumerate(pairwise(prompts)):
                draft = following[:3] if right else [(token + 1) % 200 for token in following[:3]]
                kept = self.turn(engine, "a", prompt, sampling, draft_ids=draft)
                ids += prompt
                assert kept == self.expected(ids, sampling), f"turn {number}"
                ids += kept

    def test_a_fork_of_a_drafted_session_is_a_copy(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            first, more = self.prompt(40), self.prompt(20, 1)
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling, draft_ids=more[:3])
            for length in (len(ids), len(ids) - 1):
                engine.fork(f"f{length}", "a", length)
            assert self.turn(engine, "a", more, sampling) == self.expected(ids + more, sampling)
            for length in (len(ids), len(ids) - 1):
                assert self.turn(engine, f"f{length}", more, sampling) == (
                    self.expected(ids[:length] + more, sampling)
                )

    def test_a_step_that_failed_never_happened(self, sampling: Sampling) -> None:
        with self.engine() as engine:
            first, more = self.prompt(40), self.prompt(20, 1)
            engine.open("a")
            ids = first + self.turn(engine, "a", first, sampling)
            runner = engine.switch.runner
            engine.switch.runner = _Broken(runner)
            failed = self.submit(engine, "a", more, sampling)
            engine.run()
            assert isinstance(engine.ending(failed), TurnFailed)
            engine.switch.runner = runner
            assert self.turn(engine, "a", more, sampling) == self.expected(ids + more, sampling)

    @pytest.mark.soak
    @pytest.mark.timeout(3600 if SOAK else 900)
    @pytest.mark.parametrize("seed", range(4))
    def test_random_operations_answer_like_a_model_without_cache(
        self, sampling: Sampling, seed: int
    ) -> None:
        RandomOperations(self.backend, sampling, seed, drafting=self.drafting).run(
            self.backend.steps
        )


class _Broken:
    """Writes the KV of its batch, then fails."""

    def __init__(self, runner: object) -> None:
        self._runner = runner

    def execute(self, batch: object) -> list[int]:
        self._runner.execute(batch)
        raise RuntimeError("broken on purpose")
