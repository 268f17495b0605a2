"""API keys (`sk-<key id>.<secret>`): creation, parsing, hashing, redaction in logs. Pure."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_FORM = re.compile(r"sk-([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
# Own keys, keys of other services sent by mistake, and any text where a key is expected.
_IN_TEXT = re.compile(
    r"(?P<known>(?<![A-Za-z0-9])sk-[0-9a-f]{16}\.)[A-Za-z0-9_-]+"
    r"|(?P<other>(?<![A-Za-z0-9])sk-)[A-Za-z0-9._-]{8,}"
    r"|(?P<place>openai-insecure-api-key\.|(?i:bearer)[ +]+)(?!sk-)[^\s\"',;)\]}]+"
    r"|(?P<url>://[^\s:/@?#]*:)[^\s/?#]+(?=@)"  # the password of a database
)
SALT_BYTES = 16
_REMOVED = "[removed]"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A complete key. Only its owner has it: the database stores a salted hash of the secret."""

    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The key as text, valid in a header and in a subprotocol name."""
        return f"sk-{self.id}.{self.secret}"


@dataclass(frozen=True, slots=True)
class HashedSecret:
    """The stored form of a secret."""

    salt: bytes
    hash: bytes


def new_api_key() -> ApiKey:
    """A key with 256 random bits."""
    return ApiKey(secrets.token_hex(8), secrets.token_urlsafe(32))


def read_api_key(text: str) -> ApiKey | None:
    """Parse a key; None when it is malformed."""
    found = _FORM.fullmatch(text)
    return ApiKey(found[1], found[2]) if found else None


def hash_secret(secret: str) -> HashedSecret:
    """Hash a new secret with a salt of its own.

    Slow hashes (scrypt, argon2) protect guessable passwords. These secrets are 256 random bits and
    are checked with every request: one round of BLAKE2b (RFC 7693) is enough.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    return HashedSecret(salt, _digest(secret, salt))


def is_secret(secret: str, stored: HashedSecret) -> bool:
    """Whether the secret matches the stored hash, in constant time."""
    return hmac.compare_digest(_digest(secret, stored.salt), stored.hash)


def without_keys(text: str) -> str:
    """The text with every secret removed; ids of own keys stay, to identify the owner."""
    return _IN_TEXT.sub(_cut, text)


def _cut(found: re.Match[str]) -> str:
    return next(kept for kept in found.groups() if kept is not None) + _REMOVED


def _digest(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(secret.encode(), digest_size=32, salt=salt).digest()
