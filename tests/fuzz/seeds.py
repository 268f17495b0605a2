"""Right inputs: every field of a request once, each kind of frame, templates of the families."""

from tests.text import templates

BODY = {
    "model": "fake",
    "input": [
        {"type": "message", "role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"},
                                     {"type": "text", "text": "b"}]},
    ],
    "instructions": "Be kind.", "max_output_tokens": 4, "temperature": 0.5, "top_p": 0.9,
    "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "frequency_penalty": 0.5,
    "presence_penalty": -0.5, "logit_bias": {"7": 1}, "seed": 7,
    "stop": ["x", "yy"], "truncation": "disabled",
    "metadata": {"deadline_ms": "5000", "priority": "normal", "note": "<|im_end|>"},
    "context_management": [{"type": "last_turns", "turns": 3, "fidelity": "exact"}],
    "store": True, "generate": True, "background": False, "parallel_tool_calls": False,
    "max_tool_calls": 1, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k",
    "moderation": None, "prompt": None, "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "in_memory", "reasoning": {"effort": "none"},
    "service_tier": "auto", "stream_options": {"include_obfuscation": False},
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
    "include": ["reasoning.encrypted_content"], "stream": False,
}  # fmt: skip
PLAIN = {"model": "fake", "input": "hello", "max_output_tokens": 4}
BODIES = [BODY, PLAIN, {**PLAIN, "conversation": {"id": "mine"}}, {**PLAIN, "store": False}]
FRAMES = [
    *({"type": "response.create", **body} for body in BODIES),
    {"type": "response.create", **PLAIN, "stream_id": "a", "idempotency_key": "once"},
    {"type": "response.create", **PLAIN, "previous_response_id": "resp_1"},
    {"type": "response.resume", "response_id": "resp_1", "starting_after": 2, "stream_id": "b"},
    {"type": "response.cancel", "response_id": "resp_1", "keep": True},
    {"type": "session.update", "session": "conv_1", "ttl_s": 5, "retention": "park",
     "priority": "low", "context_management": [{"type": "none"}]},
    {"type": "session.close", "session": "conv_1"},
]  # fmt: skip
CHATS = [
    {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": None},
            {"role": "assistant", "content": "yes", "refusal": None, "annotations": [],
             "audio": None, "tool_calls": [], "function_call": None},
            {"role": "user", "content": "more"},
        ],
        "max_tokens": 4, "max_completion_tokens": 4, "temperature": 0.5, "top_p": 1, "stop": "x",
        "seed": 1, "stream": False, "metadata": {"a": "b"}, "store": True, "top_k": 1,
        "min_p": 0.0, "user": "u", "n": 1, "logprobs": False, "frequency_penalty": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "logit_bias": {}, "modalities": ["text"], "functions": [],
        "response_format": {"type": "text"}, "verbosity": "medium", "reasoning_effort": "none",
    },
    {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
]  # fmt: skip
TEMPLATES = [
    templates.CHATML_DEFAULT_SYSTEM,
    templates.CHATML_THINKING,
    templates.HEADERS_WITH_DATE,
    templates.INSTRUCTIONS,
]
