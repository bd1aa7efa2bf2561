"""Addresses that are none, by way of everything that takes one: one message each, and no password in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gridlaw.platform.addresses import bearer, redacted
from gridlaw.platform.errors import BadInput
from gridlaw.platform.jobs import check_dashboard_address
from gridlaw.platform.ledger.tracking import resolve_tracking_uri
from gridlaw.platform.store.s3 import parse_address
from gridlaw.platform.tuning.storage import resolve_storage

TAKERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--address": ("http", check_dashboard_address),
    "run.tracking_uri": ("http", resolve_tracking_uri),
    "run.storage": ("postgresql", resolve_storage),
    "run.store": ("s3", parse_address),
}


NONE = ["[", "[::1", "host:port/x", "me:topsec/ret@host:5000", "me:[topsec@host"]
CASES = [(field, rest) for field in TAKERS for rest in (*NONE, *([""] if field != "run.storage" else []))]
"""A database without a host is one on this machine's socket."""


@pytest.mark.parametrize(("field", "rest"), CASES)
def test_what_is_no_address_is_refused_in_one_message_without_a_password(field: str, rest: str) -> None:
    scheme, take = TAKERS[field]
    with pytest.raises(BadInput) as refused:
        take(f"{scheme}://{rest}")
    text = str(refused.value)
    assert text.startswith(field) and "allowed: " in text and "\n" not in text
    assert "topsec" not in text and "ret@" not in text


def test_user_and_password_are_not_shown() -> None:
    assert redacted("http://me:secret@host:5000/x") == "http://***@host:5000/x"
    assert redacted("postgresql://host/name?user=me&password=secret") == "postgresql://host/name?user=***&password=***"
    assert redacted("sqlite:////home/me@work/mlflow.db") == "sqlite:////home/me@work/mlflow.db"


@pytest.mark.parametrize("token", ["topsec\nret", "topsec ret", "topsecr\u20act", "topsec\tret"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(BadInput) as refused:
        bearer("RAY_AUTH_TOKEN", token)
    assert str(refused.value).startswith("RAY_AUTH_TOKEN") and "topsec" not in str(refused.value)
