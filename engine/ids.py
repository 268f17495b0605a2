"""Types of the engine's ids. No logic."""

from array import array
from typing import NewType, TypeAlias

BlockId = NewType("BlockId", int)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
TokenId = NewType("TokenId", int)

BlockArray: TypeAlias = "array[int]"
"""Array of block ids, of type code i, as in the pool's own lists."""
