"""The default model on the native kernels: its laws bit for bit, its distance from float32."""

import os
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.files.spec_reader import read_spec
from engine.model.kernels.library import load_library
from engine.model.native import prepare_native_model
from tests.kernels.laws import by_chunks, part, together
from tests.processors import each_isa

pytestmark = pytest.mark.real_model

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
MODEL = CACHE / "sessiond/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCKS = np.random.default_rng(2).permutation(160).tolist()
# "<|im_start|>user\nWhy is the sky blue? ..." and a reply, as the file's own vocabulary has it
DIALOGUE = [int(word) for word in (Path(__file__).parent / "dialogue_ids.txt").read_text().split()]


@pytest.fixture(scope="module", params=each_isa())
def model(request, library_path):
    if not load_library(library_path).engine_supports(request.param.encode()):
        pytest.skip(f"the processor has no {request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SESSIOND_CPU_ISA", request.param)
        config = EngineConfig(model=str(MODEL), device="cpu")
        return prepare_native_model(read_spec(MODEL), config, threads=2, library_path=library_path)


@pytest.fixture(scope="module")
def exact():
    from tests.model.support import load

    runner = load(MODEL).runner(160)
    return runner.logits([part(DIALOGUE, 0, len(DIALOGUE), BLOCKS)], every_token=True).numpy()


def test_chunks_batch_and_place_change_no_bit(model):
    runner = model.runner(160)
    ids = (DIALOGUE * 3)[:290]  # into the second segment of attention
    whole = by_chunks(runner, ids, BLOCKS, [])
    for cuts in ([17, 256, 257], list(range(280, 290))):
        np.testing.assert_array_equal(by_chunks(runner, ids, BLOCKS[::-1], cuts), whole)
    sequences = [(ids[:40], BLOCKS[3 * index : 3 * index + 3]) for index in range(9)]
    for logits in together(runner, sequences, 7):
        np.testing.assert_array_equal(logits, whole[:40])


def test_weights_are_kept_as_the_file_has_them(model):
    assert model.formats == ("Q4_1", "Q8_0")
    assert model.weights_bytes < 97e6


def test_quality_is_that_of_int8_activations(model, exact, record_property):
    """KL against float32 on a dialogue, and what a token is worth that float32 would not choose.

    The instruction sets are near 0.003 and at most near 0.35. How many tokens differ depends on the
    last bits of each set; that they differ only where float32 hardly prefers its own does not.
    """
    logits = by_chunks(model.runner(160), DIALOGUE, BLOCKS, [])
    theirs, ours = _log_softmax(exact), _log_softmax(logits)
    divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1).mean()
    chosen = np.take_along_axis(theirs, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    lost = (theirs.max(axis=1) - chosen).max()
    record_property("kl", float(divergence))
    record_property("most_lost", float(lost))
    assert divergence < 0.006
    assert lost < 0.7


def _log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
