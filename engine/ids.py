"""Types of the engine's ids. Nothing here does anything."""

from array import array
from typing import NewType, TypeAlias

BlockId = NewType("BlockId", int)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
TokenId = NewType("TokenId", int)

BlockArray: TypeAlias = "array[int]"
"""Many block ids in a row, of type code i, as the pool's own lists have them."""
