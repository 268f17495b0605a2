"""What holds for the whole suite."""

import os

# Before torch is imported, as the engine's process does: threads that spin at a barrier collapse
# when another process wants a core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
