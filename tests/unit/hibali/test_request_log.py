"""Test what is shown of URLs in logs."""

from __future__ import annotations

import shlex

import pytest

from hibali.request_log import command_text, shown_url, shown_urls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://s3.test/b?list-type=2&prefix=a%2Fb", "https://s3.test/b?list-type=2&prefix=a%2Fb"),
        (
            "https://s3.test/b/k?X-Amz-Signature=PLANTED&x-id=GetObject",
            "https://s3.test/b/k?X-Amz-Signature=***&x-id=***",
        ),
        ("https://me:PLANTED@host.test:8443/a", "https://host.test:8443/a"),
        ("https://blob.test/a?PLANTED", "https://blob.test/a?***"),
        (
            "https://swift.test/a?temp_url_sig=PLANTED&temp_url_expires=1",
            "https://swift.test/a?temp_url_sig=***&temp_url_expires=***",
        ),
        (
            "https://portal.test/userfiles?cbrain_api_token=PLANTED&page=2",
            "https://portal.test/userfiles?cbrain_api_token=***&page=2",
        ),
        ("https://host.test/a#access_token=PLANTED", "https://host.test/a"),
        ("/a/b?uploads", "/a/b?uploads"),
        ("https://[help page]", "***"),
        ("http://a\u2100b/PLANTED", "***"),
    ],
)
def test_logins_and_values_of_a_query_are_hidden(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://user:PLA/NTED@host.test/a", "https://host.test/a"),
        ("https://user:PLA'N\"TED@host.test", "https://host.test"),
        ("https://user:PLA NTED@host.test/a?sig=PLANTED", "https://host.test/a?sig=***"),
        ("https://user:PLA#NTED@host.test/a", "https://host.test/a"),
        ("sftp://user:PLA@NTED@host.test", "sftp://host.test"),
        ("HTTPS://host.test/a?sig=PLANTED", "https://host.test/a?sig=***"),
        ("s3://bucket/key?sig=PLANTED", "s3://bucket/key?sig=***"),
        ("wss://host.test/?token=PLANTED", "wss://host.test/?token=***"),
        ("--from=https://host.test/a#PLANTED", "--from=https://host.test/a"),
        ("juwels:data@2", "juwels:data@2"),
    ],
)
def test_secrets_in_typed_urls_are_hidden(word: str, shown: str) -> None:
    assert command_text(["hibali", word.encode()]) == shlex.join(["hibali", shown])


def test_urls_in_a_message_are_shown_without_secrets() -> None:
    message = "refused: see https://[help page] and 'ftp://u:PLANTED@host.test/a?sig=PLANTED': denied"
    assert shown_urls(message) == "refused: see *** page] and 'ftp://host.test/a?sig=***': denied"


def test_receivers_of_notices_are_hidden_in_a_command_line() -> None:
    argv = ["hibali", "run", "--notify", "sh -c 'PLANTED'", "--notify=https://host.test/PLANTED", "--wait"]
    assert command_text(argv) == "hibali run --notify '***' '--notify=***' --wait"
    argv = ["hibali", "schedule", "notify", "--webhook", "PLANTED", "--command=PLANTED"]
    assert "PLANTED" not in command_text([*argv, "--secret-command", "PLANTED"])
