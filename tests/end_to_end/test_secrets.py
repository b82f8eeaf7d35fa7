"""Test that secrets are in no argument, log, ledger, config or error text (S16)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.secret_search import check_secrets_absent, watch_process_arguments
from tests.support.transfers import Transfers
from tests.support.trees import many_files

WRONG = "PLANTED0secret0that0is0wrong0000000000000"


@pytest.fixture(autouse=True)
def from_nothing(hibali: Any) -> None:
    """Start hibali as a program of its own, because only that shows its arguments to others."""
    hibali.forks = False


@pytest.fixture
def bucket(transfers_to: Any) -> Transfers:
    there: Transfers = transfers_to("s3")
    return there


@pytest.mark.heavy
def test_keys_in_the_environment_do_not_leak(bucket: Transfers, tmp_path: Path) -> None:
    there = bucket
    secrets = [there.hibali.env["AWS_SECRET_ACCESS_KEY"]]
    there.make(many_files(100, 2000))
    with watch_process_arguments(secrets) as found:
        answers = [
            there.hibali("push", there.source, "there:data", "-v", "--json", exit=0),
            there.hibali("ls", "there:data", "-v", exit=0),
            there.hibali("pull", "there:data", tmp_path / "back", "-v", exit=0),
            there.hibali("verify", "there:data", "-v", exit=0),
            there.hibali("sites", "check", "there", "-v"),
            there.hibali("pull", "there:nothing", tmp_path / "back2", "-v", "--json", exit=3),
        ]
    assert found == []
    check_secrets_absent(secrets, there.hibali, *answers)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "changes",
    [
        {"AWS_SECRET_ACCESS_KEY": WRONG},
        {"AWS_ACCESS_KEY_ID": "UNKNOWNKEY", "AWS_SECRET_ACCESS_KEY": WRONG},
        {"AWS_SECRET_ACCESS_KEY": WRONG, "AWS_SESSION_TOKEN": "PLANTEDtoken"},
    ],
)
def test_refused_keys_are_4_and_not_repeated(bucket: Transfers, changes: dict[str, str]) -> None:
    there = bucket
    there.make({b"a": b"1"})
    answers = [
        there.hibali("push", there.source, "there:data", "-v", "--json", env=changes, exit=4),
        there.hibali("ls", "there:data", env=changes, exit=4),
    ]
    assert answers[0].last["hint"]
    check_secrets_absent([WRONG, "PLANTEDtoken"], there.hibali, *answers)


def test_no_keys_at_all_is_4_with_a_hint(bucket: Transfers) -> None:
    there = bucket
    there.make({b"a": b"1"})
    del there.hibali.env["AWS_SECRET_ACCESS_KEY"], there.hibali.env["AWS_ACCESS_KEY_ID"]
    answer = there.hibali("push", there.source, "there:data", "--json", exit=4)
    assert answer.last["hint"]


@pytest.mark.heavy
def test_keys_from_a_command_do_not_leak(bucket: Transfers, tmp_path: Path) -> None:
    there = bucket
    key, secret = (there.hibali.env.pop(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    vault = tmp_path / "vault"
    vault.mkdir(mode=0o700)
    (vault / "keys.json").write_text(
        f'{{"Version": 1, "AccessKeyId": "{key}", "SecretAccessKey": "{secret}"}}'
    )
    config = there.hibali.home.config
    config.write_text(config.read_text() + f'credentials_command = ["cat", "{vault}/keys.json"]\n')
    there.make({b"a": b"1"})
    with watch_process_arguments([secret]) as found:
        answers = [there.hibali("push", there.source, "there:data", "-v", "--json", exit=0)]
        (vault / "keys.json").write_text(f'{{"Version": 1, "SecretAccessKey": "{secret}", broken')
        answers.append(there.hibali("push", there.source, "there:data", "-v", "--json"))
        assert answers[-1].exit in {2, 4}, str(answers[-1])
        (vault / "keys.json").unlink()
        answers.append(there.hibali("push", there.source, "there:data", "-v", "--json"))
        assert answers[-1].exit in {2, 4}, str(answers[-1])
    assert found == []
    check_secrets_absent([secret], there.hibali, *answers)


def test_files_of_hibali_are_private(there: Transfers) -> None:
    """Check for folders with mode 0700 and files with mode 0600 under any umask (S4)."""
    there.make({b"a": b"1"})
    before = os.umask(0)
    try:
        there.push()
    finally:
        os.umask(before)
    for folder in (there.hibali.home.state, there.hibali.home.runtime):
        for path in folder.rglob("*"):
            if not path.is_symlink():
                assert path.stat().st_mode & 0o077 == 0, f"{path} {path.stat().st_mode:o}"
