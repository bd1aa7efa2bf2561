"""Reading one artifact of a bucket or a folder, whether or not it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridlaw.platform.ledger import artifacts
from s3_server import S3Server


def test_an_artifact_in_a_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", s3_server.environment["AWS_ENDPOINT_URL"])
    bucket = s3_server.new_bucket()
    s3_server.client().put_object(Bucket=bucket, Key="1/run/artifacts/tables/laws.json", Body="größe".encode())
    uri = f"s3://{bucket}/1/run/artifacts"
    assert artifacts.local_folder(uri) is None
    assert artifacts.read_text(uri, "tables/laws.json", "sqlite:///nowhere.db") == "größe"
    assert artifacts.read_text(uri, "laws.json", "sqlite:///nowhere.db") is None
    assert artifacts.read_text(uri, "none/laws.json", "sqlite:///nowhere.db") is None


def test_folders_of_this_machine() -> None:
    assert artifacts.local_folder("/data/1/run/artifacts") == Path("/data/1/run/artifacts")
    assert artifacts.local_folder("file:///data/with%20space") == Path("/data/with space")
    assert artifacts.local_folder("mlflow-artifacts:/1/run/artifacts") is None
