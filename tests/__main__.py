"""`python -m tests RING [pytest's arguments]`: one ring of tests, as `make` runs it.

Files run on two workers; tests marked `serial` run behind them, alone.
"""

import signal
import subprocess
import sys

from tests.rings import RINGS

_PASSED, _NONE_RAN = 0, 5
_PARTS = (("not serial", "-n", "2", "--dist", "loadfile"), ("serial",))


def main():
    """Exit with the first part's failure, or with 5 when no test ran."""
    ring, *arguments = sys.argv[1:]
    if ring not in RINGS:
        sys.exit(f"RING must be one of {', '.join(RINGS)} (got {ring!r})")
    # Ctrl-C reaches pytest, too, which stops its workers and its Postgres: wait for that. Unlike
    # SIG_IGN, a handler is not inherited.
    interrupts = []
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))
    codes = []
    for mark, *options in _PARTS:
        command = [sys.executable, "-m", "pytest", "--ring", ring, "-m", mark, *options, *arguments]
        codes.append(subprocess.run(command, check=False).returncode)
        if interrupts:
            break
    failed = [code for code in codes if code not in (_PASSED, _NONE_RAN)]
    sys.exit(failed[0] if failed else min(codes))


if __name__ == "__main__":
    main()
