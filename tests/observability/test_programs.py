"""Where the tests' Prometheus comes from: what lies in the cache is used only while it is whole."""

import json

import pytest

from tests.observability import programs
from tests.observability.programs import NAMES, NotToBeHadError, is_whole, sums_of


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "sha256.json").write_text(json.dumps(sums_of(tmp_path)))
    return tmp_path


def test_a_whole_folder_is_used_as_it_is(folder, monkeypatch):
    monkeypatch.setattr(programs.shutil, "which", lambda _: None)
    monkeypatch.setattr(programs, "cache_folder", lambda: folder)
    assert programs.find_programs().promtool == str(folder / "promtool")


@pytest.mark.parametrize("harm", ["change", "remove", "unlisted"])
def test_a_folder_that_is_not_whole_is_fetched_anew(folder, harm):
    assert is_whole(folder)
    if harm == "change":
        (folder / "promtool").write_bytes(b"promtooL")
    elif harm == "remove":
        (folder / "prometheus").unlink()
    else:
        (folder / "sha256.json").unlink()
    assert not is_whole(folder)


def test_why_it_is_not_to_be_had_is_said(tmp_path):
    with pytest.raises(NotToBeHadError, match="no-such-command"):
        programs.run(["no-such-command", "download"], tmp_path)
