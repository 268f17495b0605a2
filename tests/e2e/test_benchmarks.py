"""The benchmarks run, and what they write down makes sense. Its numbers are not judged here."""

import json
import subprocess
import sys

from tests.docs.blocks import ROOT


def test_quick_benchmark_writes_ratios_of_both_servers(tmp_path):
    path = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(path)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    (ttft,) = result["ttft"]
    assert ttft["recomputed_cached_tokens"] == 0
    assert ttft["kept_cached_tokens"] >= ttft["history_tokens"] * 0.9
    assert ttft["ratio"] > 0
    assert [row["sessions"] for row in result["decode"]] == [1, 2]
    assert "Time to first token" in done.stdout


def test_footprint_tells_of_both_processes(tmp_path):
    path = tmp_path / "footprint.json"
    command = [sys.executable, "-m", "benchmarks.footprint", "--quick", "--output", str(path)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    (native,) = json.loads(path.read_text())["servers"]
    engine, used = native["engine"], native["engine_used"]
    assert 0 < native["gateway"]["pss"] < engine["pss"]
    # weights lie in the mapping too, the pool untouched; turns commit a small part of it
    assert engine["largest_committed"] < used["largest_committed"] < engine["largest"] / 2
    assert "share of a core" in done.stdout
