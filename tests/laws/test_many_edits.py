"""64 `shifted` edits one after the other move KV no further than one move would.

The KV that is left is copied to a straight table, K turned once from its old slot to its new one. A
step over that table has the same logits but for the rounding of that one rotation.
"""

import numpy as np
import pytest
import torch

from engine.ids import BlockId, SessionId
from engine.ipc.messages import Edit
from engine.kv.page_table import PageEntry
from engine.kv.step import SequenceStep
from engine.model.layers import RotaryTable, TorchOps
from engine.model.runner import LoadedModel
from engine.text.tokenizer import load_tokenizer
from tests.harness.loop import Engine
from tests.laws.law_model import law_model, law_spec
from tests.model.support import load
from tests.model.test_default_model import MODEL

pytestmark = pytest.mark.second

BLOCK = 16
EDITS = 64
POOL = 80
PREFIX = 20


class _Edited:
    """One chat of an engine that loses its oldest turn again and again."""

    def __init__(self, model, draw_ids):
        self.runner = model.runner(POOL)
        self.engine = Engine(
            runner=lambda _blocks, _size: self.runner, num_blocks=POOL, num_speculative_tokens=0,
            idle_prefill=False,
        )  # fmt: skip
        self.draw_ids = draw_ids
        self.engine.open("a")
        self.turn(PREFIX)

    def turn(self, length):
        turn = self.engine.turn(
            "a", self.draw_ids(length), close_ids=[], stop_ids=[], max_output_tokens=3
        )
        self.engine.turn("a", self.draw_ids(1), generate=False, close_ids=[])  # all has KV
        assert self.engine.ending(turn) is not None

    @property
    def context(self):
        return self.engine.loop.memory.contexts[SessionId("a")]

    def drop(self, start, stop):
        """Returns the pool's bytes before the edit."""
        before = self.runner.store.bytes.clone()
        self.engine.edit("a", Edit(at=len(self.context.ids), dropped=((start, stop),)))
        assert not self.context.stages
        return before

    def logits(self, entries, token):
        length = sum(entry.last - entry.first + 1 for entry in entries)
        step = SequenceStep(
            token_ids=[token], first_position=length - 1, entries=entries, sample=None
        )
        return self.runner.logits([step], every_token=True)


def straight(edited, spec, dtype):
    """Copy what the context holds to blocks in a row; returns their entries."""
    places = [
        (entry.block, slot)
        for entry in edited.context.table.entries
        for slot in range(entry.first, entry.last + 1)
    ]
    used = set(edited.context.table.blocks)
    free = [block for block in range(POOL) if block not in used]
    table = RotaryTable(spec.rope, spec.head_dim, dtype=dtype, device=torch.device("cpu"))
    for layer in range(spec.num_layers):
        keys, values = edited.runner.store.layer(layer)
        for at, (block, slot) in enumerate(places):
            target, place = free[at // BLOCK], at % BLOCK
            turn = table.at(np.array([place - slot], dtype=np.int64))
            keys[target, place] = TorchOps().rotate(keys[block, slot][None], turn[:, None])[0]
            values[target, place] = values[block, slot]
    return [
        PageEntry(BlockId(free[start // BLOCK]), 0, min(BLOCK, len(places) - start) - 1, start)
        for start in range(0, len(places), BLOCK)
    ]


def compare(model, spec, draw_ids, dtype):
    """Largest difference of logits, and the largest logit."""
    edited = _Edited(model, draw_ids)
    for number in range(EDITS):
        edited.turn(7 + number % 12)
        if len(edited.context.ids) > 160:
            edited.drop(PREFIX + number % 3, PREFIX + 30)
        else:
            edited.drop(PREFIX, PREFIX + 3)
    edited.turn(5)
    context = edited.context
    assert {entry.first for entry in context.table.entries} > {0}, "parts of blocks are left"
    last = context.ids[-1]
    ours = edited.logits(list(context.table.entries), last)
    theirs = edited.logits(straight(edited, spec, dtype), last)
    edited.engine.check()
    return (ours - theirs).abs().max().item(), ours.abs().max().item()


def drawing(vocabulary):
    generator = np.random.default_rng(5)
    return lambda length: generator.choice(vocabulary, length).tolist()


def test_64_edits_are_one_move_on_the_law_backend():
    spec = law_spec()
    model = law_model(spec)
    difference, largest = compare(model, spec, drawing(range(256)), torch.float64)
    assert largest > 1
    assert difference < 1e-9


@pytest.mark.real_model
def test_64_edits_are_one_move_on_the_default_model():
    model = load(MODEL)
    words = load_tokenizer(MODEL).encode("the sea, a lamp and fog; two ships. Nobody sleeps " * 4)
    difference, largest = compare(model, model.spec, drawing(words), torch.float32)
    assert largest > 1
    assert difference < 1e-3


def test_an_edit_writes_no_block_and_leaves_shared_ones_shared():
    edited = _Edited(law_model(law_spec()), drawing(range(256)))
    edited.turn(100)
    edited.engine.fork("b", "a", len(edited.context.ids))
    before = edited.drop(PREFIX, 60)
    assert torch.equal(before, edited.runner.store.bytes)
    pool = edited.engine.loop.memory.pool
    blocks = edited.context.table.blocks
    assert all(pool.references(block) == 2 for block in blocks)
    assert set(blocks) < set(edited.engine.loop.memory.contexts[SessionId("b")].table.blocks)
    edited.engine.check()


def at_positions(model):
    """The same model with K that lies rotated by its position, so that each edit turns it."""
    return LoadedModel(
        llama=model.llama,
        kv_dtype=getattr(torch, model.kv_dtype),
        block_size=BLOCK,
        max_model_len=model.max_model_len,
        fingerprint="absolute",
        position_form="absolute",
    )


def compare_forms(model, vocabulary, edits):
    """Largest difference of logits between K by slot and K by position, and the largest logit."""
    free, turned = (_Edited(each, drawing(vocabulary)) for each in (model, at_positions(model)))
    for number in range(edits):
        for edited in (free, turned):
            edited.turn(40)
            edited.drop(PREFIX + number % 3, PREFIX + 41)
    free.turn(5)
    turned.turn(5)
    assert free.context.ids == turned.context.ids
    assert {entry.first for entry in turned.context.table.entries} == {0}
    last = free.context.ids[-1]
    ours = turned.logits(list(turned.context.table.entries), last)
    theirs = free.logits(list(free.context.table.entries), last)
    turned.engine.check()
    return (ours - theirs).abs().max().item(), theirs.abs().max().item()


def test_shifted_is_the_same_whether_k_lies_by_slot_or_by_position():
    difference, largest = compare_forms(law_model(law_spec()), range(256), edits=20)
    assert largest > 1
    assert difference < 1e-9


@pytest.mark.real_model
def test_shifted_is_the_same_in_both_forms_on_the_default_model():
    words = load_tokenizer(MODEL).encode("the sea, a lamp and fog; two ships. Nobody sleeps " * 4)
    difference, largest = compare_forms(load(MODEL), words, edits=3)
    assert largest > 1
    assert difference < 1e-3


def test_k_is_rounded_once_for_each_edit_it_lives_through():
    """In bfloat16 a turned K is off by half a unit in the last place, and again at each turn."""
    spec = law_spec()
    table = RotaryTable(spec.rope, spec.head_dim, dtype=torch.float32, device=torch.device("cpu"))
    exact = torch.randn(4000, spec.head_dim, generator=torch.Generator().manual_seed(1))
    errors = []
    for turns in (1, 5, 20):
        k = exact.bfloat16()
        for _ in range(turns):
            k = TorchOps().rotate(k, table.back(np.full(len(k), 37)))
        right = TorchOps().rotate(exact.bfloat16().float(), table.back(np.full(len(k), 37 * turns)))
        errors.append(((k.float() - right).norm() / right.norm()).item())
    assert errors[0] < 2**-8
    assert errors[0] < errors[1] < 3 * errors[0], "they add up as a random walk does"
    assert errors[1] < errors[2] < 6 * errors[0]
