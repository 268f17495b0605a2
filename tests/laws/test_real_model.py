"""The laws on the default model in float32, as far as rounding lets them hold.

The order of sums differs between ways of computing the same, so tokens may differ at near-ties:
each token of each reply is held against dense logits of just its own context.
"""

from collections.abc import Iterator

import pytest
import torch

from engine.files.catalog import DEFAULT_MODEL, resolve_model
from engine.ids import TurnId
from engine.model.runner import LoadedModel
from tests.engine.harness import Engine
from tests.model.support import load, prefill_logits, random_ids

pytestmark = pytest.mark.real_model

TOLERANCE = 1e-3
CLOSE = [2, 198]
BLOCKS = 40


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load(resolve_model(DEFAULT_MODEL))
    torch.set_num_threads(before)


class Chat:
    """Sessions on one engine, and what the ids of each must be."""

    def __init__(self, model: LoadedModel, **settings: object) -> None:
        self.engine = Engine(runner=lambda blocks, _size: model.runner(blocks), **settings)
        self.dense = model.runner(BLOCKS)
        self.ids: dict[str, list[int]] = {}

    def open(self, *sessions: str) -> None:
        for session in sessions:
            self.engine.open(session)
            self.ids[session] = []

    def fork(self, session: str, parent: str, length: int) -> None:
        self.engine.fork(session, parent, length)
        self.ids[session] = self.ids[parent][:length]

    def turns(self, **prompts: list[int]) -> None:
        """One turn per session, all at once; each reply is held against dense logits."""
        started = {
            session: self.engine.submit(
                session, prompt, stop_ids=[], close_ids=CLOSE, max_output_tokens=6
            )
            for session, prompt in prompts.items()
        }
        self.engine.run()
        for session, turn in started.items():
            self._check(session, prompts[session], turn)
        self.engine.check()

    def _check(self, session: str, prompt: list[int], turn: TurnId) -> None:
        kept = self.engine.kept(turn)
        reply = torch.tensor(kept[: -len(CLOSE)])
        before = self.ids[session] + prompt
        ids = before + kept[: -len(CLOSE)]
        logits = prefill_logits(self.dense, ids, range(BLOCKS))[len(before) - 1 : -1]
        drawn = logits.gather(1, reply[:, None])[:, 0]
        assert (logits.max(dim=1).values - drawn < TOLERANCE).all(), session
        self.ids[session] = before + kept


def prompt(length: int, seed: int) -> list[int]:
    return random_ids(length, vocab=40_000, seed=seed)


def test_batched_chunked_forked_and_rebuilt_replies_are_those_of_a_dense_model(
    model: LoadedModel,
) -> None:
    chat = Chat(model, max_num_batched_tokens=32, num_blocks=BLOCKS)
    chat.open("a", "b")
    chat.turns(a=prompt(50, 1), b=prompt(17, 2))
    chat.fork("c", "a", 41)
    chat.turns(a=prompt(9, 3), b=prompt(30, 4), c=prompt(9, 3))
    chat.engine.release("b")
    chat.engine.open("a", chat.ids["a"])
    chat.turns(a=prompt(5, 5), b=prompt(5, 6))


def test_preempted_replies_are_those_of_a_dense_model(model: LoadedModel) -> None:
    chat = Chat(model, num_blocks=7, enable_prefix_caching=False)
    chat.open("a", "b", "c")
    chat.turns(a=prompt(30, 1), b=prompt(31, 2), c=prompt(32, 3))
    assert chat.engine.stats().preemptions_total > 0
