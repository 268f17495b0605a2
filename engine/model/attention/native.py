"""What the native kernels declare. Pure; no torch.

They are a path of their own, not a backend that torch runs: what keeps a model off them is
`engine.planning.native_sizes.why_not_native`'s to say, and the declaration tells the rest.
"""

from engine.model.attention.declaration import BackendCandidate, Declaration, Obstacle
from engine.planning.native_sizes import BLOCK_TOKENS, MAX_HEAD_DIM

_NATIVE = Declaration(
    name="native",
    title="native",
    device_types=frozenset({"cpu"}),
    dtypes=frozenset({"int8", "bfloat16"}),
    kv_dtypes=frozenset({"bfloat16", "float32", "int8"}),
    page_multiple=BLOCK_TOKENS,
    head_multiple=16,
    max_head_dim=MAX_HEAD_DIM,
)


def native_candidate(*reasons: str) -> BackendCandidate:
    """Return the kernels as a candidate, with what is in their way."""
    obstacles = tuple(Obstacle(reason=f"can't: {reason}") for reason in reasons)
    return BackendCandidate(declaration=_NATIVE, obstacles=obstacles)
