"""The quality benchmark's measures are what they say, and its runs are the engine's."""

import re
import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from benchmarks.quality import llama
from benchmarks.quality.measures import agree, compare, pack, summarize, unpack
from benchmarks.quality.ours import AT_ONCE, Ours, Precision
from benchmarks.quality.texts import WINDOW
from engine.model.kernels import library
from tests.kernels.test_tensors import VOCAB, write_gguf


def random_logits(seed, rows=5, vocab=301):
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * 4).astype(np.float32)


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def test_packed_log_probabilities_come_back_within_half_a_step():
    logits = random_logits(1)
    logits[0, 7] -= 1000
    exact, found = log_softmax(logits), unpack(pack(logits), logits.shape[1])
    near = logits > logits.max(axis=1, keepdims=True) - 16
    assert np.abs(found - exact)[near].max() < 16 / 65535
    assert found[0, 7] == pytest.approx(exact[0].max() - 16, abs=1e-4)


def test_divergence_is_kl_and_surprise_is_minus_log_p():
    base, model = random_logits(1), random_logits(1) + random_logits(2) / 20
    following = np.array([3, 1, 4, 1, 5], dtype=np.int32)
    theirs, ours = log_softmax(base), log_softmax(model)
    found = compare(pack(base), model, following)
    exact = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    np.testing.assert_allclose(found.divergence, exact, atol=1e-4)
    np.testing.assert_allclose(found.surprise, -ours[np.arange(5), following], atol=1e-5)
    np.testing.assert_array_equal(found.same_top, base.argmax(axis=1) == model.argmax(axis=1))
    assert compare(pack(base), base, following).divergence.max() < 1e-4
    mean = summarize([found, found])
    assert mean.divergence == pytest.approx(found.divergence.mean())
    assert mean.perplexity == pytest.approx(np.exp(found.surprise.mean()))


def test_replies_agree_up_to_their_first_difference():
    found = agree([[1, 2, 3], [4, 5], [6]], [[1, 2, 3], [4, 7], [6, 8]])
    assert (found.equal, found.mean_prefix) == (pytest.approx(1 / 3), pytest.approx(5 / 3))


def test_the_base_file_has_the_peers_layout(tmp_path):
    windows = np.arange(2 * WINDOW, dtype=np.int32).reshape(2, WINDOW)
    rows = [pack(random_logits(seed, WINDOW // 2 - 1, 301)) for seed in (1, 2)]
    llama.write_base(tmp_path / "base", windows, 301, rows)
    data = (tmp_path / "base").read_bytes()
    assert data[:8] == b"_logits_"
    assert struct.unpack("<3i", data[8:20]) == (WINDOW, 301, 2)
    assert data[20 : 20 + windows.nbytes] == windows.tobytes()
    # the row's words: four of header, then one per token, padded to a pair
    assert len(data) == 20 + windows.nbytes + 2 * (WINDOW // 2 - 1) * (4 + 302) * 2


@pytest.fixture
def ours(tmp_path, library_path, monkeypatch):
    monkeypatch.setattr(library, "HERE", library_path.parent)
    path = write_gguf(tmp_path / "tiny.gguf", [Kind.Q4_1])
    return Ours(path, Precision(name="x", kv_cache_dtype="int8"), WINDOW)


def test_replies_are_the_same_alone_and_together(ours):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, 5 + index).tolist() for index in range(AT_ONCE + 2)]
    free = ours.replies(prompts, frozenset(), 6)
    assert {len(reply) for reply in free} == {6}
    stop = free[0][2]
    together = ours.replies(prompts, frozenset([stop]), 6)
    for index, prompt in enumerate(prompts):
        assert ours.replies([prompt], frozenset([stop]), 6) == [together[index]]
    assert together[0] == free[0][: free[0].index(stop) + 1]


def test_windows_give_the_logits_of_their_second_half(ours):
    windows = np.random.default_rng(1).integers(0, VOCAB, (2, WINDOW), dtype=np.int32)
    logits = list(ours.window_logits(windows))
    assert [each.shape for each in logits] == [(WINDOW // 2 - 1, VOCAB)] * 2
    prompt = windows[1, : WINDOW // 2 + 1].tolist()
    assert ours.replies([prompt], frozenset(), 1) == [[int(logits[1][0].argmax())]]


def test_a_peer_that_prints_no_result_is_told(tmp_path):
    program = tmp_path / "llama-perplexity"
    program.write_text("#!/bin/sh\necho no such file\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(RuntimeError, match=re.escape("no such file")):
        llama.measure_distances(tmp_path, tmp_path / "model", tmp_path / "base")
