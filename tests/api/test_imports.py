"""The gateway's process stays light."""

import subprocess
import sys

SERVES = "sessiond.__main__, sessiond.assembly, sessiond.cli.server, sessiond.store.migrate"


def test_the_gateway_imports_nothing_of_the_model():
    heavy = ("torch", "numpy", "gguf", "transformers", "safetensors", "openai", "engine.model")
    code = f"import sys, {SERVES}; print(*sorted(set({heavy}) & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
