"""Whether the full counts are wanted: `make soak` sets the variable."""

import os

SOAK = bool(os.environ.get("SESSIOND_SOAK"))
