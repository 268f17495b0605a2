from sessiond.cli import chat_history
from sessiond.cli.chat_history import ChatHistory, history_file


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
    monkeypatch.setattr(chat_history, "MAX_ENTRIES", 2)
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
