"""`python -m tests RING [pytest's arguments]`: one ring of tests, as `make` runs it.

Files run on two workers; tests marked `serial` run behind them, alone.
"""

import argparse
import signal
import subprocess
import sys

from tests.rings import RINGS

_PASSED, _NONE_RAN = 0, 5
_PARTS = (("not serial", "-n", "2", "--dist", "loadfile"), ("serial",))


def main():
    """Exit with the first part's failure, or with 5 when no test ran."""
    parser = argparse.ArgumentParser(prog="python -m tests", allow_abbrev=False)
    parser.add_argument("ring", choices=RINGS)
    parser.add_argument("-m", dest="mark", help="run only tests with these marks")
    given, arguments = parser.parse_known_args()
    codes = []
    with Interruptible() as run:
        for part, *options in _PARTS:
            mark = f"({part}) and ({given.mark})" if given.mark else part
            command = [sys.executable, "-m", "pytest", "--ring", given.ring, "-m", mark]
            codes.append(run([*command, *options, *arguments]))
            if run.interrupted:
                break
    failed = [code for code in codes if code not in (_PASSED, _NONE_RAN)]
    sys.exit(failed[0] if failed else min(codes))


class Interruptible:
    """Runs one command after the other; on a signal it waits until the command has cleaned up.

    Ctrl-C reaches pytest, too, which stops its workers and its Postgres. SIGTERM is passed on as
    one. Unlike SIG_IGN, a handler is not inherited.
    """

    def __init__(self):
        self.interrupted = False
        self._process = None

    def __enter__(self):
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def __call__(self, command):
        self._process = subprocess.Popen(command)
        return self._process.wait()

    def _on_signal(self, number, _frame):
        self.interrupted = True
        if number == signal.SIGTERM and self._process is not None:
            self._process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
