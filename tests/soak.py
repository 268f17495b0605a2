"""Whether the full counts are wanted: `make soak` sets the variable. And what is drawn from."""

import os
import random

SOAK = bool(os.environ.get("SESSIOND_SOAK"))


def seed_of(variable: str) -> int:
    """What the variable says, else one that is always the same, or under soak a new one."""
    if variable in os.environ:
        return int(os.environ[variable])
    return random.SystemRandom().randrange(10**6) if SOAK else 11
