"""The gateway's process stays light."""

import subprocess
import sys


def test_the_gateway_imports_no_torch():
    code = "import sys, sessiond.app, sessiond.gateway.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
