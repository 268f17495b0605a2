"""How many blocks a turn can need."""

import pytest

from engine.capacity import blocks_for, max_output_that_fits, worst_case_blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (624, 39)])
def test_blocks_hold_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


def test_the_worst_case_is_the_longest_reply_and_its_end() -> None:
    def worst(output: int) -> int:
        return worst_case_blocks(
            context_tokens=10,
            prompt_tokens=10,
            max_output_tokens=output,
            close_tokens=2,
            block_size=16,
        )

    assert worst(10) == 2
    assert worst(11) == 3


@pytest.mark.parametrize(
    ("tokens_before", "max_model_len", "expected"),
    [(20, 1000, 128 - 2 - 20), (20, 100, 80), (126, 1000, 0), (127, 1000, 0), (200, 100, 0)],
)
def test_a_reply_that_fits_needs_no_more_than_the_pool(
    tokens_before: int, max_model_len: int, expected: int
) -> None:
    output = max_output_that_fits(
        tokens_before=tokens_before,
        close_tokens=2,
        block_size=16,
        total_blocks=8,
        max_model_len=max_model_len,
    )
    assert output == expected
    if output:
        assert tokens_before + output <= max_model_len
        assert (
            worst_case_blocks(
                context_tokens=tokens_before,
                prompt_tokens=0,
                max_output_tokens=output,
                close_tokens=2,
                block_size=16,
            )
            <= 8
        )
