"""Test that credentials from the environment equal those of botocore, which is used if files may contain more settings."""

from __future__ import annotations

import os
from pathlib import Path

import botocore.session
import pytest

from hibali.config.model import S3Settings
from transfers.stores.s3.credentials import CredentialSource, find_endpoint, is_environment_alone

SETTINGS = S3Settings(endpoint="https://s3.example.org")
KEYS = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove all AWS settings, and set a home folder without files."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "BOTO"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"AWS_SESSION_TOKEN": "token"},
        {"AWS_SECURITY_TOKEN": "older", "AWS_SESSION_TOKEN": "token"},
        {"AWS_SESSION_TOKEN": ""},
        {"AWS_DEFAULT_REGION": "ca-central-1"},
        {"AWS_REGION": "of other tools"},
    ],
)
def test_credentials_from_the_environment_equal_those_of_botocore(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    for name, value in (KEYS | more).items():
        monkeypatch.setenv(name, value)
    assert is_environment_alone(SETTINGS)
    found = CredentialSource(SETTINGS, "site").current()
    session = botocore.session.Session()
    expected = session.get_credentials().get_frozen_credentials()
    assert found is not None
    assert (found.access_key, found.secret_key, found.token) == tuple(expected)[:3]
    assert find_endpoint(SETTINGS, "site").region == (session.get_config_variable("region") or "us-east-1")


def test_a_profile_or_a_shared_file_takes_precedence(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    folder = bare / ".aws"
    folder.mkdir()
    (folder / "config").write_text("[default]\nregion = eu-central-1\n[profile lab]\nregion = eu-west-3\n")
    (folder / "credentials").write_text(
        "[lab]\naws_access_key_id = lab\naws_secret_access_key = lab secret\n"
    )
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    assert not is_environment_alone(SETTINGS)
    assert find_endpoint(SETTINGS, "site").region == "eu-central-1"
    of_profile = S3Settings(endpoint=SETTINGS.endpoint, profile="lab")
    found = CredentialSource(of_profile, "site").current()
    assert found is not None
    assert (found.access_key, find_endpoint(of_profile, "site").region) == ("lab", "eu-west-3")
