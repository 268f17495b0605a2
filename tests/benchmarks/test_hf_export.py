"""The folder that vLLM reads has the very weights and tokens of the GGUF file."""

import pytest
import torch

from benchmarks.hf_export import export_weights
from engine.files.catalog import CATALOG, DEFAULT_MODEL
from engine.files.spec_reader import read_spec
from engine.model.weights.load import Keeping, load_weights
from engine.text.chat_template import load_chat_format
from engine.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.second


@pytest.mark.real_model
def test_weights_tokens_and_template_survive(tmp_path):
    gguf, folder = CATALOG[DEFAULT_MODEL].path(), tmp_path / "exported"
    export_weights(gguf, folder)
    before, after = (
        load_weights(read_spec(path), Keeping(dtype=torch.bfloat16, device=torch.device("cpu")))
        for path in (gguf, folder)
    )
    assert torch.equal(before.embedding, after.embedding)
    for old, new in zip(before.layers.walk(), after.layers.walk(), strict=True):
        assert torch.equal(old.qkv, new.qkv)
        assert torch.equal(old.down, new.down)
    ids = []
    for path in (gguf, folder):
        template = load_chat_format(path, load_tokenizer(path))
        ids.append([*template.open(None), *template.message("user", "Crème brûlée\n 你好 12345")])
    assert ids[0] == ids[1]
