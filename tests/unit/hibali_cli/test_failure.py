"""Test bug reports: they have the location of the error and no secrets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hibali import subprocesses
from hibali.errors import UsageError
from hibali.subprocesses import credentials_from
from hibali_cli.failure import print_error, write_bug_report

SECRETS = {
    "remembered": "correct-horse-battery",
    "in a variable": "from-the-environment-17",
    "of the store": "wJalrXUtnFEMI/K7MDENG",
    "in a URL": "user:hunter2hunter2",
    "a header": "Bearer abc.def-ghi",
    "an assignment": "password='pa55-word-9'",
    "a key": "AKIAIOSFODNN7EXAMPLE",
}


@pytest.mark.parametrize("chained", [False, True])
def test_secrets_are_not_in_it(hibali_home: Any, monkeypatch: pytest.MonkeyPatch, chained: bool) -> None:
    assert hibali_home
    monkeypatch.setenv("HIBALI_STATE", str(hibali_home.state))
    monkeypatch.setenv("LAB_API_TOKEN", SECRETS["in a variable"])
    monkeypatch.setattr(subprocesses, "_known", set())
    subprocesses.remember_secret(SECRETS["remembered"])
    printed = json.dumps({"username": "me-myself-1", "password": SECRETS["of the store"]})
    command = [sys.executable, "-c", f"print({printed!r})"]
    credentials_from(command, lambda text: text, key="k", what="w", subject="a", hint="h")
    words = [
        *(value for name, value in SECRETS.items() if name != "in a URL"),
        f"https://{SECRETS['in a URL']}@example.org/x",
        "where it went wrong",
    ]
    try:
        try:
            raise KeyError(*words)
        except KeyError as problem:
            if not chained:
                raise
            raise RuntimeError("another one") from problem
    except (KeyError, RuntimeError) as failure:
        where = write_bug_report(failure)
    assert where is not None
    report = Path(where).read_text()
    assert "where it went wrong" in report
    assert "test_failure.py" in report
    for name, secret in SECRETS.items():
        bare = secret.removeprefix("Bearer ").removeprefix("password='").removesuffix("'")
        assert bare not in report, name
    assert Path(where).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("subject", "message", "printed"),
    [
        ("--detach", "--detach needs --nodes", "hibali: --detach needs --nodes [code]"),
        ("--detach", "it needs --nodes", "hibali: --detach: it needs --nodes [code]"),
        ("here:", "it is protected", "hibali: here: it is protected [code]"),
        (
            "site",
            "the settings are invalid:\nunknown key",
            "hibali: site: the settings are invalid [code]\n  unknown key",
        ),
    ],
)
def test_no_name_and_no_colon_is_doubled(
    capsys: pytest.CaptureFixture[str], subject: str, message: str, printed: str
) -> None:
    print_error(UsageError("code", message, subject=subject))
    assert capsys.readouterr().err == f"{printed}\n"
