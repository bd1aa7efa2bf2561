"""Addresses that are none, by way of everything that takes one: one message each, and no password in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gridlaw.platform.addresses import bearer, redacted
from gridlaw.platform.errors import BadInput
from gridlaw.platform.jobs import check_dashboard_address
from gridlaw.platform.ledger.tracking import Tracking, resolve_tracking_uri
from gridlaw.platform.store.s3 import parse_address
from gridlaw.platform.tuning.storage import resolve_storage

TAKERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--address": ("http", check_dashboard_address),
    "run.tracking_uri": ("http", resolve_tracking_uri),
    "run.storage": ("postgresql", resolve_storage),
    "run.store": ("s3", parse_address),
}


NONE = [
    "[", "[::1", "host:port/x", "me:topsec/ret@host:5000", "me:[topsec@host", "me:12/topsec@host:5000",
    "host:port/x?user=me&password=topsec",
]  # fmt: skip
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


def test_addresses_that_are_some() -> None:
    """A path may hold what elsewhere would be a user's; a database may be one of this machine's."""
    assert parse_address("s3://bucket/users/me@corp.com/runs") == ("bucket", "users/me@corp.com/runs")
    for uri in (
        "postgresql+psycopg://me:p%2Fw@host:5432/db", "postgresql:///name?host=/var/run", "http://[::1]:5000",
        "sqlite:////home/me:1/x@y/mlflow.db", "https://mlflow/team",
    ):  # fmt: skip
        assert resolve_tracking_uri(uri) == uri


def test_user_and_password_are_not_shown() -> None:
    assert redacted("http://me:secret@host:5000/x") == "http://***@host:5000/x"
    assert redacted("postgresql://host/name?user=me&password=secret") == "postgresql://host/name?user=***&password=***"
    assert redacted("sqlite:////home/me@work/mlflow.db") == "sqlite:////home/me@work/mlflow.db"


@pytest.mark.parametrize("token", ["topsec\nret", "topsec ret", "topsecr\u20act", "topsec\tret"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(BadInput) as refused:
        bearer("RAY_AUTH_TOKEN", token)
    assert str(refused.value).startswith("RAY_AUTH_TOKEN") and "topsec" not in str(refused.value)


def test_mlflow_is_not_given_a_token_that_it_would_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "topsec\nret")
    tracking = Tracking(uri="http://127.0.0.1:1", patience_seconds=0.0)
    with pytest.raises(BadInput, match="MLFLOW_TRACKING_TOKEN") as refused:
        tracking.call("look", lambda client: client.get_run("run"))
    assert "topsec" not in str(refused.value)
