"""Addresses that people write: taken apart, or refused in one message, and shown without what is secret in them."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from gridlaw.platform.errors import BadInput

_USER = re.compile(r"//[^/?#]*@")
_OF_FILES = ("sqlite", "journal", "file")
_SECRET_QUERY = re.compile(r"([?&])(user|password|passfile|token)=[^&#]*", re.IGNORECASE)


def split_address(field: str, address: str, *, allowed: str) -> SplitResult:
    """The parts of an address; ``BadInput`` for one that has none: a bracket without its pair, a port that is no
    number, a user whose password has a slash in it."""
    parts = _parts(address)
    if parts is not None:
        return parts
    if "@" not in address:
        raise BadInput(field, seen=redacted(address), allowed=allowed)
    hint = "In a password / ? # [ ] @ : are written as %2F %3F %23 %5B %5D %40 %3A"
    seen = f"{address.partition('://')[0]}://…"  # the password may be anywhere in it
    raise BadInput(field, seen=seen, allowed=allowed, hint=hint)


def _parts(address: str) -> SplitResult | None:
    try:
        parts = urlsplit(address)
        _ = parts.port  # read, so that it is checked
    except ValueError:
        return None
    # What looks like a port may be the beginning of a password with a slash.
    cut = ":" in parts.netloc and "@" not in parts.netloc and "@" in address and parts.scheme not in _OF_FILES
    return None if cut else parts


def redacted(uri: str) -> str:
    """The address without user and password, for messages, tags and logs."""
    bare = _USER.sub("//***@", uri, count=1)
    return _SECRET_QUERY.sub(r"\1\2=***", bare)


def bearer(variable: str, token: str) -> dict[str, str]:
    """The header that carries a token; ``BadInput``, without the token, for one that no header can carry."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise BadInput(
            variable,
            seen="a text with line breaks, spaces or letters beyond ASCII",
            allowed="a token: one line of ASCII without spaces",
            hint="Was more than the token copied?",
        )
    return {"Authorization": f"Bearer {token}"}
