"""Types of the engine's ids. Nothing here does anything."""

from typing import NewType

BlockId = NewType("BlockId", int)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
TokenId = NewType("TokenId", int)
