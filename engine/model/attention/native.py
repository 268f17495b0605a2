"""Declaration of the native kernels. Pure; no torch.

They are a separate path, not a backend that torch runs. `engine.planning.native_sizes` decides
whether they can run a model (`why_not_native`).
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
    """Return the kernels as a candidate, with these obstacles."""
    obstacles = tuple(Obstacle(reason=f"is not available: {reason}") for reason in reasons)
    return BackendCandidate(declaration=_NATIVE, obstacles=obstacles)
