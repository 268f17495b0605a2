"""The benchmarks run, and what they write down makes sense. Its numbers are not judged here."""

import json
import re
import subprocess
import sys

from tests.docs.blocks import ROOT


def test_an_unknown_workload_or_peer_is_named_with_what_is_allowed():
    for option in ("--only", "--peers"):
        command = [sys.executable, "-m", "benchmarks", option, "W9"]
        done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2
        assert "W9" in done.stderr
        assert "must be among" in done.stderr


def test_quick_benchmark_writes_ratios_of_both_servers(tmp_path):
    path = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(path)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    (ttft,) = result["ttft"]
    assert ttft["recomputed_cached_tokens"] == 0
    assert ttft["kept_cached_tokens"] >= ttft["history_tokens"] * 0.9
    assert ttft["ratio"] > 0
    assert [row["sessions"] for row in result["decode"]] == [1, 2]
    (run,) = result["runs"]
    assert run["fault"] == ""
    assert run["figures"]["tok_s"] > 0
    assert run["cached_tokens"] > 0
    assert {cell["server"] for cell in result["summary"]} == {"sessiond"}
    assert "Time to first token" in done.stdout


def test_a_lost_client_is_timed_in_every_phase():
    command = [sys.executable, "-m", "benchmarks.disconnect", "--times", "1", "--others", "2"]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "from the drop to free" in line]
    assert len(re.findall(r"\d+\.\d \(\d+\.\d\)", row)) == 3


def test_footprint_tells_of_both_processes(tmp_path):
    path = tmp_path / "footprint.json"
    command = [sys.executable, "-m", "benchmarks.footprint", "--quick", "--output", str(path)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (native,) = json.loads(path.read_text())["servers"]
    engine, used = native["engine"], native["engine_used"]
    assert 0 < native["gateway"]["pss"] < engine["pss"]
    # weights lie in the mapping too, the pool untouched; turns commit a small part of it
    assert engine["largest_committed"] < used["largest_committed"] < engine["largest"] / 2
    assert "share of a core" in done.stdout
