"""`python -m tests.fuzz.guided TARGET RUNS SEED`: one target under atheris, guided by coverage.

atheris ends the process it runs in, so each target has one of its own (`python -m tests.fuzz`).
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["sessiond", "engine", "jinja2"]):
    from tests.fuzz.targets import TARGETS


def main(name: str, runs: str, seed: str) -> None:
    """Fuzz; ends the process with a report of libFuzzer's, not with 0 where a judge failed."""
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for index, data in enumerate(target.seeds):
            (Path(corpus) / f"seed{index}").write_bytes(data)
        options = [f"-atheris_runs={runs}", f"-seed={seed}", "-max_len=65536", "-rss_limit_mb=4096"]
        artifacts = f"-artifact_prefix={tempfile.gettempdir()}/sessiond-fuzz-{name}-"
        atheris.Setup([sys.argv[0], *options, "-timeout=60", artifacts, corpus], target.judge)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
