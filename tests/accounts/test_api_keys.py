"""Keys: their form, their hashes, and that no text keeps one."""

import logging
import re

import pytest

from sessiond.api_keys import (
    HashedSecret,
    hash_secret,
    is_secret,
    new_api_key,
    read_api_key,
    without_keys,
)

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


def test_a_new_key_is_read_back_and_fits_a_header_and_a_subprotocol():
    key = new_api_key()
    assert read_api_key(key.text) == key
    assert key.text == f"sk-{key.id}.{key.secret}"
    assert TOKEN.fullmatch(f"openai-insecure-api-key.{key.text}")
    assert key.secret not in repr(key)


def test_keys_and_hashes_never_come_twice():
    assert len({new_api_key().secret for _ in range(100)}) == 100
    assert len({hash_secret("the same").hash for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    ["", "sk-", "sk-a.b", "unused", "sk-" + "0" * 16 + "." + "a" * 42, "x" * 100_000,
     "sk-" + "0" * 16 + "." + "a" * 44, "SK-" + "0" * 16 + "." + "a" * 43,
     "sk-" + "g" * 16 + "." + "a" * 43, "sk-" + "0" * 16 + "." + "a" * 43 + "\n"],
)  # fmt: skip
def test_what_has_not_the_form_is_no_key(text):
    assert read_api_key(text) is None


def test_only_the_secret_itself_is_the_secret():
    stored = hash_secret("right")
    assert is_secret("right", stored)
    assert not is_secret("wrong", stored)
    assert not is_secret("right", HashedSecret(b"another salt", stored.hash))
    assert b"right" not in stored.hash + stored.salt


def test_texts_lose_their_secrets_and_keep_the_rest():
    key = new_api_key()
    for around in ("{}", "{},", "key={} rest", "'{}'", "openai-insecure-api-key.{}, responses"):
        clean = without_keys(around.format(key.text))
        assert key.secret not in clean
    assert without_keys(f"key {key.text} came") == f"key sk-{key.id}.[removed] came"
    assert without_keys("sk-proj-abcdefghijkl") == "sk-[removed]"
    assert without_keys("Authorization: Bearer abc.def") == "Authorization: Bearer [removed]"
    plain = "a task-oriented disk-based sk- b; the bearer"
    assert without_keys(plain) == plain


def test_the_log_keeps_no_key_in_messages_arguments_or_tracebacks():
    from sessiond.cli.serve import KeylessFormatter

    key = new_api_key()
    try:
        int(key.text)
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "got %s", (key.text,), info)
    line = KeylessFormatter("%(message)s").format(record)
    assert "Traceback" in line
    assert line.count(f"sk-{key.id}.[removed]") == 2
    assert key.secret not in line
