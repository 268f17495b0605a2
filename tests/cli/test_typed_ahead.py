import pytest

from sessiond.cli.typed_ahead import TypedAhead

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
