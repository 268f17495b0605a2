"""The default model equals transformers, float32, same weights."""

import os
from pathlib import Path

import pytest
import torch

from engine.files.gguf_header import read_gguf_header
from engine.files.spec_reader import read_spec
from engine.model.weights.gguf import GgufTensors
from tests.model.support import draw, load, prefill_logits, step

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = [pytest.mark.second, pytest.mark.real_model]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
MODEL = CACHE / "sessiond/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"

LARGEST_ERROR = 1e-3  # of a logit
QUESTIONS = [
    "What is the capital of France?",
    "请用一句话介绍北京。",
    "Write a haiku about autumn leaves.",
    "Explain how a bicycle stays upright.",
    "List three prime numbers greater than ten.",
    "今天天气怎么样？我应该带伞吗？",
    "Translate 'good morning' into Spanish, French and German.",
    "def fibonacci(n):",
    "Why is the sky blue? Answer in one short paragraph.",
    "Tell me a joke about a cat and a printer.",
]


@pytest.fixture(scope="module")
def encode():
    """Ids of a chat with one question, by the tokenizers package from the file's vocabulary."""
    metadata = read_gguf_header(MODEL).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])

    def chat(question):
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        return tokenizer.encode(text).ids

    return chat


@pytest.fixture(scope="module")
def model():
    return load(MODEL)


@pytest.fixture(scope="module")
def oracle():
    """A transformers model that is given the file's weights by their names there."""
    spec = read_spec(MODEL)
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        max_position_embeddings=spec.max_position,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        oracle = transformers.LlamaForCausalLM(config)
    state = {}
    with GgufTensors(spec) as tensors:
        for name, parameter in oracle.named_parameters():
            values = tensors.read(name, tuple(parameter.shape))
            if ".q_proj." in name or ".k_proj." in name:
                pairs = values.view(-1, spec.head_dim // 2, 2, spec.hidden_size)
                values = pairs.transpose(1, 2).reshape(values.shape)
            state[name] = values
    oracle.load_state_dict(state, strict=False, assign=True)
    oracle.tie_weights()
    # its table of frequencies is no parameter, so it is still on the meta device
    oracle.model.rotary_emb = type(oracle.model.rotary_emb)(config)
    return oracle.eval()


def oracle_logits(oracle, ids):
    with torch.inference_mode():
        return oracle(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize(
    "question",
    [QUESTIONS[0], QUESTIONS[1], "数到一百。" * 9 + QUESTIONS[3], " ".join(QUESTIONS) * 5],
    ids=["english", "chinese", "mixed", "long"],
)
def test_logits_equal_transformers(encode, model, oracle, question):
    ids = encode(question)
    theirs = oracle_logits(oracle, ids)
    blocks = range(len(ids) // 16 + 1)
    for chunk in (len(ids), 100):
        ours = prefill_logits(model.runner(len(blocks)), ids, blocks, chunk)
        torch.testing.assert_close(ours, theirs, atol=LARGEST_ERROR, rtol=0)


def test_long_question_is_over_512_tokens(encode):
    assert len(encode(" ".join(QUESTIONS) * 5)) > 512


def test_greedy_replies_of_a_batch_equal_transformers_except_at_near_ties(encode, model, oracle):
    """Teacher-forced over our own tokens, so that a divergence at a near-tie ends no comparison.

    The logits of two tokens may swap if they are within twice the error of one. How many are is up
    to the rounding of the machine.
    """
    runner = model.runner(10 * 8)
    blocks = [range(8 * place, 8 * place + 8) for place in range(10)]
    prompts = [encode(question) for question in QUESTIONS]
    sequences, starts = [list(ids) for ids in prompts], [0] * 10
    for index in range(64):
        batch = [
            step(ids, start, mine, sample=draw(index))
            for ids, start, mine in zip(sequences, starts, blocks, strict=True)
        ]
        starts = [len(ids) for ids in sequences]
        for ids, token in zip(sequences, runner.execute(batch), strict=True):
            ids.append(token)
    for prompt, ids in zip(prompts, sequences, strict=True):
        theirs = oracle_logits(oracle, ids)[len(prompt) - 1 : -1]
        assert len(theirs) == 64
        chosen = theirs.gather(-1, torch.tensor(ids[len(prompt) :])[:, None])[:, 0]
        assert (theirs.amax(-1) - chosen).max() <= 2 * LARGEST_ERROR


def test_load_reads_what_the_header_says(model):
    assert model.spec.architecture == "llama"
    assert (model.dtype, model.kv_dtype, model.attention) == ("float32", "float32", "torch")
    assert model.weights_bytes == 134_515_008 * 4
    assert model.kv_bytes_per_block == 30 * 2 * 16 * 3 * 64 * 4
