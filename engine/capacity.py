"""Computes how many blocks a turn can need. Pure."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)


def worst_case_blocks(
    *,
    context_tokens: int,
    prompt_tokens: int,
    max_output_tokens: int,
    close_tokens: int,
    block_size: int,
) -> int:
    """Return the blocks of a context after a turn of the greatest possible length."""
    tokens = context_tokens + prompt_tokens + max_output_tokens + close_tokens
    return blocks_for(tokens, block_size)
