"""How many blocks a turn can need, and how long a reply fits. Pure; the gateway uses it too."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)


def worst_case_blocks(
    *,
    context_tokens: int,
    prompt_tokens: int,
    max_output_tokens: int,
    close_tokens: int,
    block_size: int,
) -> int:
    """Blocks of a context after a turn that was as long as it may be."""
    tokens = context_tokens + prompt_tokens + max_output_tokens + close_tokens
    return blocks_for(tokens, block_size)


def max_output_that_fits(
    *,
    tokens_before: int,
    close_tokens: int,
    block_size: int,
    total_blocks: int,
    max_model_len: int,
) -> int:
    """The longest reply that both the pool and the model can hold; 0 when not one token fits.

    `tokens_before` are the context and the turn's own tokens.
    """
    limit = min(total_blocks * block_size - close_tokens, max_model_len)
    return max(0, limit - tokens_before)
