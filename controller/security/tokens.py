"""Join tokens: a worker needs its job's token to join. The controller keeps a salted hash, never shown."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from typing import Final

VARIABLE: Final = "P4REDUCE_JOIN_TOKEN"
SHORTEST: Final = 16  # characters; a guess a second would take longer than the universe has been there
LONGEST: Final = 256
_SALT_BYTES: Final = 16


def wrong_with(token: str) -> str | None:
    """Say what is wrong with a token, without quoting it; return None if nothing is."""
    if not SHORTEST <= len(token) <= LONGEST:
        return (
            f"a join token has {SHORTEST} to {LONGEST} characters, this one has {len(token)}: "
            "'openssl rand -hex 16' makes a good one"
        )
    if not token.isprintable() or token != token.strip():
        return "a join token has printable characters only, and no space at its ends"
    return None


def hashed(token: str) -> str:
    """Return the salt and hash of a token, to be kept."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{salt.hex()}:{_digest(salt, token)}"


def matches(token: str, kept: str) -> bool:
    """Tell whether this token was hashed to that; takes as long for every wrong one."""
    salt, _, digest = kept.partition(":")
    return hmac.compare_digest(_digest(bytes.fromhex(salt), token), digest)


def from_environment() -> str:
    """Return the token in P4REDUCE_JOIN_TOKEN; empty if there is none."""
    return os.environ.get(VARIABLE, "")


def _digest(salt: bytes, token: str) -> str:
    return hashlib.sha256(salt + token.encode()).hexdigest()
