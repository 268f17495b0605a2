"""The native runner on tiny models: equal to torch within bfloat16, and to itself bit for bit."""

import ctypes
import mmap

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, Corruption
from engine.files.spec_reader import read_spec
from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from engine.model.kernels.library import LibraryMissingError, load_library
from engine.model.native import prepare_native_model
from tests.kernels.laws import GREEDY, by_chunks, entries, part, together
from tests.kernels.tiny_model import write_tiny_model

FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]
HUGE_PAGE = 2 * 2**20
IDS = np.random.default_rng(1).integers(0, 203, 300).tolist()
BLOCKS = np.random.default_rng(2).permutation(40).tolist()


def native(path, library_path, threads=2, **settings):
    config = EngineConfig(model=str(path), device="cpu", **settings)
    return prepare_native_model(read_spec(path), config, threads=threads, library_path=library_path)


class ChangingThreadCount:
    threads = 3

    def note(self, **_effort):
        self.threads = self.threads % 3 + 1


@pytest.fixture(scope="session", params=FAMILIES)
def family(request, tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(params=["portable", "avx2", "avx512"])
def isa(request, library_path, monkeypatch):
    if not load_library(library_path).engine_supports(request.param.encode()):
        pytest.skip(f"the processor has no {request.param}")
    monkeypatch.setenv("SESSIOND_CPU_ISA", request.param)
    return request.param


@pytest.fixture
def runner(family, isa, library_path):
    model = native(family, library_path)
    assert model.isa == isa
    return model.runner(40)


def committed_bytes(array):
    """Bytes of an array's pages that have memory (mincore(2)); the array begins at a page."""
    pages = np.zeros(-(-array.nbytes // mmap.PAGESIZE), dtype=np.uint8)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (array, pages)]
    assert ctypes.CDLL(None).mincore(pointers[0], ctypes.c_size_t(array.nbytes), pointers[1]) == 0
    return int((pages & 1).sum()) * mmap.PAGESIZE


def test_the_pool_is_not_committed_before_use(family, library_path):
    runner = native(family, library_path).runner(20_000)
    assert runner.pool.nbytes > 16 * HUGE_PAGE
    assert committed_bytes(runner.pool) == 0
    runner.execute([part(IDS, 0, 20, [9, 10])])
    assert 0 < committed_bytes(runner.pool) <= 2 * HUGE_PAGE


def test_logits_equal_torch_within_bfloat16(family, isa, library_path):
    from tests.model.support import load

    exact = load(family).runner(40).logits([part(IDS, 0, 300, BLOCKS)], every_token=True).numpy()
    for kv_dtype, limit in (("bfloat16", 0.02), ("float32", 0.02), ("int8", 0.03)):
        model = native(family, library_path, kv_cache_dtype=kv_dtype)
        assert model.formats == ("BF16",)
        logits = by_chunks(model.runner(40), IDS, BLOCKS, [100])
        assert np.std(logits - exact) < limit * np.std(exact)
        assert (logits.argmax(1) == exact.argmax(1)).mean() > 0.9


def test_any_chunks_give_the_same_bits(runner):
    whole = by_chunks(runner, IDS, BLOCKS, [])
    for cuts in ([1], [16, 17, 255, 256, 257], list(range(7, 300, 7)), list(range(1, 300))):
        np.testing.assert_array_equal(by_chunks(runner, IDS, BLOCKS, cuts), whole)


def test_any_place_gives_the_same_bits(runner):
    whole = by_chunks(runner, IDS, BLOCKS, [])
    np.testing.assert_array_equal(by_chunks(runner, IDS, BLOCKS[::-1], [33]), whole)


def test_any_batch_gives_the_same_bits(runner):
    alone = by_chunks(runner, IDS[:100], BLOCKS, [])
    shorter = by_chunks(runner, IDS[50:90], BLOCKS, [])
    sequences = [(IDS[:100], BLOCKS[:7]), (IDS[:100], BLOCKS[7:14]), (IDS[50:90], BLOCKS[14:17])]
    sequences += [(IDS[:100], BLOCKS[index : index + 7]) for index in (17, 24, 31)]
    logits = together(runner, sequences, 13)
    for index, found in enumerate(logits):
        np.testing.assert_array_equal(found, shorter if index == 2 else alone)


def test_threads_give_the_same_bits(family, library_path):
    one, three = (native(family, library_path, threads=count).runner(40) for count in (1, 3))
    np.testing.assert_array_equal(
        by_chunks(one, IDS, BLOCKS, [1, 2, 3]), by_chunks(three, IDS, BLOCKS, [1, 2, 3])
    )


def test_threads_that_come_and_go_change_no_bit(family, library_path):
    whole = by_chunks(native(family, library_path, threads=1).runner(40), IDS, BLOCKS, [])
    runner = native(family, library_path, threads=3).runner(40)
    runner._thread_count = ChangingThreadCount()  # noqa: SLF001 -- as if threads came and went
    cuts = [*range(1, 12), 40, 200, 290]
    np.testing.assert_array_equal(by_chunks(runner, IDS, BLOCKS, cuts), whole)


def test_dropped_front_blocks_outside_the_window_change_nothing(tmp_path, isa, library_path):
    runner = native(write_tiny_model(tmp_path, "mistral"), library_path).runner(40)
    by_chunks(runner, IDS, BLOCKS, [])
    whole = runner.logits([part(IDS, 299, 300, BLOCKS)])
    step = SequenceStep(
        token_ids=IDS[299:],
        first_position=299,
        entries=entries(BLOCKS, 300)[-4:],
        sample=GREEDY,
    )
    np.testing.assert_array_equal(runner.logits([step]), whole)


def test_a_block_serves_at_another_base(runner):
    """K is rotated by its slot only, so blocks moved together give the same result."""
    whole = by_chunks(runner, IDS[:64], BLOCKS, [])
    moved = [entry._replace(base=entry.base + 256) for entry in entries(BLOCKS, 64)]
    step = SequenceStep(token_ids=IDS[63:64], first_position=319, entries=moved, sample=GREEDY)
    # angles are the differences of positions: the very same here
    np.testing.assert_array_equal(runner.logits([step])[0], whole[63])


def test_rotations_of_far_positions_are_made_when_needed(runner):
    whole = by_chunks(runner, IDS[:20], BLOCKS, [])
    moved = [entry._replace(base=entry.base + 3072) for entry in entries(BLOCKS, 20)]
    step = SequenceStep(token_ids=IDS[19:20], first_position=3091, entries=moved, sample=GREEDY)
    np.testing.assert_array_equal(runner.logits([step])[0], whole[19])


def test_copied_block_serves_as_well(runner):
    whole = by_chunks(runner, IDS[:40], BLOCKS, [])
    runner.copy_block(BlockId(BLOCKS[1]), BlockId(BLOCKS[10]))
    copied = [BLOCKS[0], BLOCKS[10], BLOCKS[2]]
    np.testing.assert_array_equal(runner.logits([part(IDS, 39, 40, copied)])[0], whole[39])


def test_zeroed_block_is_empty(runner):
    by_chunks(runner, IDS[:40], BLOCKS, [])
    assert runner.pool[BLOCKS[1]].any()
    runner.zero_block(BlockId(BLOCKS[1]))
    assert not runner.pool[BLOCKS[1]].any()
    assert runner.pool[BLOCKS[0]].any()


def test_greedy_and_seeded_draws_come_from_the_logits(runner):
    seeded = SampleAt(sampling=Sampling(temperature=1.0, seed=5), output_index=3)
    steps = [
        part(IDS, 0, 20, BLOCKS[:2]),
        part(IDS, 0, 20, BLOCKS[2:4], sample=None),
        part(IDS, 0, 20, BLOCKS[4:6], sample=seeded),
    ]
    logits = runner.logits(steps)
    assert len(logits) == 2
    first, second = runner.execute(steps)
    assert first == int(logits[0].argmax())
    assert [first, second] == runner.execute(steps)
    drawn = {
        runner.execute(
            [
                part(
                    IDS,
                    0,
                    20,
                    BLOCKS,
                    sample=SampleAt(sampling=Sampling(temperature=1.0, seed=seed), output_index=0),
                )
            ]
        )[0]
        for seed in range(20)
    }
    assert len(drawn) > 1


def _changed(step, **changes):
    values = {name: getattr(step, name) for name in step.__slots__}
    return SequenceStep(**(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": []},
        {"token_ids": [203] * 20},
        {"token_ids": [-1] * 20},
        {"entries": ()},
        {"first_position": 1},
        {"entries": (PageEntry(BlockId(1), 0, 15, 0),)},
        {"entries": (PageEntry(BlockId(1), 0, 15, 0), PageEntry(BlockId(40), 0, 3, 16))},
        {"entries": (PageEntry(BlockId(1), 0, 15, 0), PageEntry(BlockId(-1), 0, 3, 16))},
        {"entries": (PageEntry(BlockId(1), 0, 15, 0), PageEntry(BlockId(2), 0, 16, 16))},
        {"entries": (PageEntry(BlockId(1), 0, 15, 0), PageEntry(BlockId(2), 0, 3, 15))},
        {"entries": (PageEntry(BlockId(1), 0, 15, 4), PageEntry(BlockId(2), 0, 3, 16))},
        {"entries": (PageEntry(BlockId(1), 9, 5, 0), PageEntry(BlockId(2), 0, 3, 16))},
    ],
    ids=str,
)
def test_a_step_that_contradicts_itself_is_refused_unwritten(tmp_path, library_path, changes):
    runner = native(write_tiny_model(tmp_path), library_path).runner(40)
    with pytest.raises(Corruption):
        runner.execute([_changed(part(IDS, 0, 20, BLOCKS), **changes)])
    assert not runner.pool.any()


def test_edited_tables_are_read_as_they_are_now(runner):
    """The buffers remember what they wrote for a place in the batch; tables may change."""
    first, second = BLOCKS[:3], BLOCKS[3:6]
    whole = [
        by_chunks(runner, ids, blocks, [])[-1]
        for ids, blocks in ((IDS[:40], first), (IDS[100:140], second))
    ]
    for _ in range(2):
        for ids, blocks, expected in (
            (IDS[:40], first, whole[0]),
            (IDS[100:140], second, whole[1]),
        ):
            logits = runner.logits([part(ids, 39, 40, blocks)])
            np.testing.assert_array_equal(logits[0], expected)


def test_what_the_kernels_lack_is_refused_with_its_reason(tmp_path, library_path, monkeypatch):
    path = write_tiny_model(tmp_path)
    with pytest.raises(ConfigError, match="block_size=32"):
        native(path, library_path, block_size=32)
    with pytest.raises(ConfigError, match="dtype=float32"):
        native(path, library_path, dtype="float32")
    with pytest.raises(ConfigError, match="head_dim=24"):
        native(write_tiny_model(tmp_path / "odd", head_dim=24), library_path)
    monkeypatch.setenv("SESSIOND_CPU_ISA", "sse9")
    with pytest.raises(ConfigError, match="sse9"):
        native(path, library_path)


def test_a_missing_library_says_so(tmp_path):
    with pytest.raises(LibraryMissingError):
        load_library(tmp_path / "absent.so")
