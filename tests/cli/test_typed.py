import pytest

from sessiond.cli import typed
from sessiond.cli.typed import ChatHistory, TypedAhead, history_file

PASTE = b"\x1b[200~one\r\rtwo \xc3\xa9\x1b[201~"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_paste_is_one_message_however_its_bytes_arrive(size):
    typing, ended = TypedAhead(), []
    keys = PASTE + b"!\rnext\rha"
    for start in range(0, len(keys), size):
        ended += typing.feed(keys[start : start + size])
    assert ended == ["one\n\ntwo é!", "next"]
    assert typing.take_draft() == "ha"
    assert typing.take_draft() == ""


def test_keys_edit_and_others_do_nothing():
    typing = TypedAhead()
    assert typing.feed(b"gone\x15ab\x7fc\x1b[A\x1bOB\x04\x01\x1b\rd\n") == ["ac\nd"]


def test_an_unfinished_paste_is_known():
    typing = TypedAhead()
    typing.feed(PASTE[:9])
    assert typing.pasting
    typing.feed(PASTE[9:])
    assert not typing.pasting


def test_messages_of_several_lines_come_back_and_bad_lines_do_not(tmp_path):
    path = tmp_path / "new" / "history"
    history = ChatHistory(path)
    assert history.load() == []
    history.add("one\n\ntwo é")
    with path.open("ab") as file:
        file.write(b"caf\xe9\n[1]\n")
    history.add("three")
    assert ChatHistory(path).load() == ["one\n\ntwo é", "three"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_file_keeps_the_latest(tmp_path, monkeypatch):
    monkeypatch.setattr(typed, "MAX_ENTRIES", 2)
    history = ChatHistory(tmp_path / "history")
    for text in ("one", "two", "three"):
        history.add(text)
    assert history.load() == ["two", "three"]
    assert (tmp_path / "history").read_bytes() == b'"two"\n"three"\n'


def test_a_folder_that_cannot_be_is_a_chat_without_history(tmp_path):
    (tmp_path / "file").write_text("")
    history = ChatHistory(tmp_path / "file" / "history")
    history.add("one")
    assert history.load() == []


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert history_file() == tmp_path / "sessiond" / "chat_history"
