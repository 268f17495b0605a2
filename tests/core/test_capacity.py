"""How many blocks a turn can need."""

import pytest

from engine.kv.partition import blocks_for, worst_case_blocks


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
