"""`python -m tests.audit`: are there advisories about the versions that constraints.txt names?

Asks pip-audit, in bounded time. Where no source of advisories can be reached that is said, and is
no failure: `make check` works offline. A known vulnerability is one.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
LIMIT_S = 45
_COMMAND = [
    *(sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS)),
    *("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"),
    *("--timeout", "5"),
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said, and whether it is a failure."""

    text: str
    failed: bool


def verdict(output: str, reason: str = "") -> Verdict:
    """What a report of pip-audit means; `reason` is what it said beside it. Pure."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (reason.strip().splitlines() or ["it reported nothing"])[-1][:200]
        return Verdict(f"dependency audit SKIPPED: {last}", failed=False)
    audited = [one for one in packages if "vulns" in one and "skip_reason" not in one]
    found = [
        f"{one['name']} {one['version']}: {each['id']}, fixed in "
        f"{', '.join(each.get('fix_versions', [])) or 'no version'}"
        for one in audited
        for each in one["vulns"]
    ]
    if found:
        return Verdict("\n".join(["dependency audit FAILED:", *found]), failed=True)
    if not audited:
        text = f"no source of advisories knows any of the {len(packages)} packages"
        return Verdict(f"dependency audit SKIPPED: {text}", failed=False)
    left = len(packages) - len(audited)
    return Verdict(f"dependency audit: {len(audited)} clean, {left} not audited", failed=False)


def main() -> None:
    """Audit; the exit status is 1 where a vulnerability is known."""
    try:
        done = subprocess.run(
            _COMMAND, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        said = verdict(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        said = verdict("", f"no answer within {LIMIT_S} s")
    sys.stdout.write(said.text + "\n")
    sys.exit(said.failed)


if __name__ == "__main__":
    main()
