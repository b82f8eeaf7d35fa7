"""Test notifications of schedules, messages about problems, and metrics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import openmetrics, parser
from prometheus_client.openmetrics import parser as strict_parser

from hibali.amounts import read_duration
from hibali.errors import AccessError, UsageError
from hibali_plugins.schedules import notices as notices_module
from hibali_plugins.schedules.environment import Credential
from hibali_plugins.schedules.maintenance import metrics_text
from hibali_plugins.schedules.notices import (
    Notice,
    NoticeHistory,
    notice_of_end,
    notice_of_silence,
    notices_of_expiry,
    parse_history,
)
from hibali_plugins.schedules.preflight import Key, LoginMethod, explain_login, problems_of
from hibali_plugins.schedules.records import Trigger
from hibali_plugins.schedules.schedule import Notices, Schedule, expression_of_interval, read_expression

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)
assert openmetrics


def ended(code: int, **more: Any) -> Trigger:
    return Trigger(
        "i",
        "nightly",
        "2026-01-10T03:00:00Z",
        ended="2026-01-10T03:10:00Z",
        state="failed",
        exit=code,
        **more,
    )


def test_a_problem_is_notified_once_a_day_and_its_end_once() -> None:
    history, notices = NoticeHistory(), []
    days = {1: [0, 5, 5, 5, 0, 0], 2: [5, 4, 5, 0], 3: [0]}
    for day, codes in days.items():
        for code in codes:
            notice = notice_of_end(ended(code), history)
            if notice is not None and history.is_new(notice, f"2026-01-0{day}"):
                history = parse_history(history.after(notice, f"2026-01-0{day}").to_record())
                notices.append((day, notice.problem_id))
    assert notices == [
        (1, "failed-5"), (1, "works-again"), (2, "failed-5"), (2, "failed-4"), (2, "works-again"),
    ]  # fmt: skip
    assert notice_of_end(ended(10), NoticeHistory(failing=True)) is not None
    assert parse_history("rubbish") == NoticeHistory()


def test_notifications_of_silence_and_expiry() -> None:
    day = timedelta(days=1)
    before = NOW - 10 * day
    assert notice_of_silence("nightly", [ended(5)], before, NOW, day) is None
    silent = notice_of_silence("nightly", [ended(0)], before, NOW + 3 * day, 2 * day)
    assert silent is not None
    assert "3 d" in silent.message
    credentials = [
        Credential("remote", "certificate", "the certificate /c", "/c", NOW + days * day, "renew it")
        for days in (-1, 3, 30)
    ]
    assert [
        each.message.rpartition("remote ")[2] for each in notices_of_expiry("n", credentials, NOW, 7 * day)
    ] == [
        "has expired",
        "expires in 3 d",
    ]


def test_problems_that_a_login_does_not_show() -> None:
    def codes(**facts: Any) -> list[str]:
        method = LoginMethod("remote", "remote", ("ssh",), "remote.example.org", "22", **facts)
        return [problem.code for problem in problems_of(method, NOW - timedelta(hours=2), NOW)]

    locked = (Key("/k", has_passphrase=True),)
    assert codes(keys=locked, host_known=True) == ["passphrase-key"]
    assert codes(keys=(*locked, Key("/o", has_passphrase=False)), host_known=False) == ["host-key"]
    assert codes(keys=locked, agent="/a") == ["no-agent"]
    assert codes(keys=locked, agent="/a", agent_answers=True, agent_ends_at_logout=True) == ["agent-ends"]
    assert codes(keys=locked, agent="/a", agent_answers=True) == []
    soon = Credential("remote", "certificate", "the certificate", "/c", NOW - timedelta(hours=1), "renew it")
    assert codes(certificates=(soon,)) == ["certificate-expires"]


@pytest.mark.parametrize(
    ("methods", "code"), [("keyboard-interactive", "second-factor"), ("publickey,password", "login-refused")]
)
def test_a_second_factor_is_distinguished_from_a_wrong_key(methods: str, code: str) -> None:
    method = LoginMethod("remote", "remote", ("ssh",), "remote", "22")
    refused = AccessError("login-refused", f"me@remote: Permission denied ({methods}).", subject="remote")
    assert explain_login(refused, "remote", method, []).code == code


def test_metrics_with_hostile_names_are_read_by_others() -> None:
    schedule = Schedule("nightly", read_expression("@daily"), ("push",), "/", NOW)
    site = 'f"a\\r\n'
    credential = Credential(site, "certificate", "", "", NOW, "")
    amounts = {
        "files": 3,
        "bytes": 9,
        "files_moved": 1,
        "bytes_moved": 3,
        "files_failed": 2,
        "proof_moved": "digest",
    }
    firings = [ended(0, seconds=2.5), ended(6, seconds=1.5, amounts=amounts)]
    text = metrics_text([schedule], {"nightly": firings}, {"nightly": [credential]})
    for parse in (strict_parser.text_string_to_metric_families, parser.text_string_to_metric_families):
        found = {sample.name: sample for family in parse(text) for sample in family.samples}
        assert found["hibali_schedule_last_exit_code"].value == 6
        assert found["hibali_schedule_failures_in_a_row"].value == 1
        assert found["hibali_schedule_last_files_failed"].value == 2
        assert found["hibali_schedule_last_proof"].labels["proof"] == "digest"
        assert found["hibali_credential_expiry_timestamp_seconds"].labels["site"] == site
        assert found["hibali_credential_expiry_timestamp_seconds"].value == NOW.timestamp()


def test_a_mail_cannot_be_given_other_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sendmail = tmp_path / "sendmail"
    sendmail.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{tmp_path}/words\ncat >{tmp_path}/mail\n')
    sendmail.chmod(0o755)
    monkeypatch.setattr(notices_module, "_SENDMAIL", (str(sendmail),))
    notice = Notice(
        "failed", "nightly", "failed-5", "x\nBcc: all@example.org\n\nbody", "hibali schedule log nightly"
    )
    assert notices_module.send_notice(Notices(mail="me@example.org"), notice) == []
    head, _, body = (tmp_path / "mail").read_text().partition("\n\n")
    assert (tmp_path / "words").read_text() == "-i|--|me@example.org|"
    assert "\nBcc" not in head
    assert "hibali schedule log nightly" in body


@pytest.mark.parametrize("secret", ["x\r\nX-Evil: 1", "x\nHost: evil", "x\x00y", "\u00e9", "x" * 5000, ""])
@pytest.mark.parametrize("webhook", ["http://127.0.0.1:9/x", "http://127.0.0.1:9/{secret}"])
def test_a_webhook_cannot_be_given_other_headers(tmp_path: Path, secret: str, webhook: str) -> None:
    (tmp_path / "secret").write_text(secret, newline="")
    notice = Notice("failed", "nightly", "failed-5", "x", "y")
    notices = Notices(webhook=webhook, secret_file=str(tmp_path / "secret"))
    problems = notices_module.send_notice(notices, notice)
    assert [problem.subject for problem in problems] == ["webhook"]
    assert "one line of ASCII" in problems[0].message
    assert "evil" not in str(problems[0]).lower()


@pytest.mark.parametrize(
    ("interval", "expression"),
    [
        ("1m", "* * * * *"),
        ("15m", "*/15 * * * *"),
        ("60m", "0 * * * *"),
        ("6h", "0 */6 * * *"),
        ("24h", "0 0 * * *"),
        ("7d", "0 0 * * 0"),
    ],
)
def test_an_interval_becomes_the_expression_that_keeps_it_exactly(interval: str, expression: str) -> None:
    assert expression_of_interval(read_duration(interval)).text == expression


@pytest.mark.parametrize("interval", ["7m", "90m", "5h", "2d", "90s", "0s", "30s", "8d"])
def test_an_interval_that_cron_cannot_keep_is_refused_with_the_possible_ones(interval: str) -> None:
    with pytest.raises(UsageError) as refused:
        expression_of_interval(read_duration(interval))
    assert refused.value.code == "bad-interval"
    assert "6h, 8h, 12h, 1d and 7d" in refused.value.hint
