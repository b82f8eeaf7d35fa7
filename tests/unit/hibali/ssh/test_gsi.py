"""Test GSI proxies: output of the tools, messages to users, and settings of a site."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.config.model import ProxySettings
from hibali.config.settings import SettingsError, parse_settings
from hibali.errors import AccessError
from hibali.ssh.gsi import (
    explain_proxy,
    format_hours,
    manual_proxy_command,
    read_passphrase,
    read_seconds_left,
)
from hibali.subprocesses import CommandResult

PATH = Path("/tmp/x509up_u1")
JUNK = b"OpenSSL Error: \xff\xfe\x1b[2J:760: in library\n\nUse -debug\n"


def explain(answer: CommandResult, seconds: float = 3600) -> AccessError:
    return explain_proxy(answer, PATH, seconds, subject="remote", line="grid-proxy-init -valid 12:00")


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (CommandResult(0, b"-1\n", b""), "proxy-expired", "has expired"),
        (CommandResult(0, b"0\n", JUNK), "proxy-expired", "has expired"),
        (
            CommandResult(0, b"3540\n", b""),
            "proxy-too-short",
            "is valid for only 59 min, but 1 h 0 min are needed",
        ),
        (
            CommandResult(1, b"", JUNK),
            "proxy-unreadable",
            "OpenSSL Error: \\xff\\xfe\\x1b[2J:760: in library",
        ),
        (CommandResult(0, b"", b""), "proxy-unreadable", "no reason was given"),
        (CommandResult(-11, b"43000\n", b""), "proxy-unreadable", "no reason was given"),
    ],
)
def test_each_result_of_grid_proxy_info_has_an_error_code_and_a_command(
    answer: CommandResult, code: str, words: str
) -> None:
    error = explain(answer)
    assert (error.code, int(error.exit), error.transient) == (code, 4, False)
    assert words in error.message
    assert error.hint == "Run: grid-proxy-init -valid 12:00"


@given(st.binary(), st.binary(), st.integers(-64, 255))
def test_errors_of_grid_proxy_info_are_one_printable_line(out: bytes, errors: bytes, status: int) -> None:
    error = explain(CommandResult(status, out, errors))
    assert min(error.message) >= " "
    assert "\x7f" not in error.message
    remaining = read_seconds_left(CommandResult(status, out, errors))
    assert (remaining is None) == (error.code == "proxy-unreadable")


@given(st.floats(0, 1e7))
def test_proxy_lifetimes_are_rounded_up_to_minutes(seconds: float) -> None:
    hours, minutes = map(int, format_hours(seconds).split(":"))
    total_seconds = hours * 3600 + minutes * 60
    assert total_seconds >= 60
    assert seconds <= total_seconds < max(seconds + 60, 61)


def test_the_manual_proxy_command_has_the_configured_options() -> None:
    settings = ProxySettings(certificate="/a b/cert.pem")
    assert manual_proxy_command(settings, 100) == "grid-proxy-init -valid 12:00 -cert '/a b/cert.pem'"
    assert manual_proxy_command(ProxySettings(), 24 * 3600) == "grid-proxy-init -valid 24:00"
    server = ProxySettings(server="px.example.org", account="ada")
    assert manual_proxy_command(server, 13.5 * 3600) == "myproxy-logon -s px.example.org -l ada -t 14"


@pytest.mark.parametrize(
    "settings",
    [
        ProxySettings(passphrase_command=("sh", "-c", "echo geheim; exit 1")),
        ProxySettings(passphrase_command=("/no/such/program",)),
        ProxySettings(passphrase_command=("true",)),
        ProxySettings(passphrase_variable="NOT_SET_ANYWHERE"),
        ProxySettings(passphrase_file="/dev/null"),
        ProxySettings(passphrase_file="/no/such/file"),
    ],
)
def test_errors_never_contain_the_passphrase(settings: ProxySettings) -> None:
    with pytest.raises(AccessError) as caught:
        read_passphrase(settings, subject="remote")
    assert caught.value.code == "no-passphrase"
    assert "geheim" not in caught.value.message + caught.value.hint.replace("echo geheim", "")


def test_a_passphrase_is_the_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"ge h\xffeim\r\nsecond\n")
    kept.chmod(0o600)
    assert read_passphrase(ProxySettings(passphrase_file=str(kept)), subject="remote") == b"ge h\xffeim"
    kept.chmod(0o640)
    with pytest.raises(AccessError, match="accounts can read it"):
        read_passphrase(ProxySettings(passphrase_file=str(kept)), subject="remote")
    monkeypatch.setenv("MY_PASSPHRASE", "geheim")
    assert read_passphrase(ProxySettings(passphrase_variable="MY_PASSPHRASE"), subject="remote") == b"geheim"
    assert read_passphrase(ProxySettings(), subject="remote") is None


def problems(table: str, command: str = '["gsissh", "-p", "2222"]') -> list[str]:
    text = f'version = 1\n[sites.remote]\nkind = "ssh"\n[sites.remote.ssh]\nhost = "h"\ncommand = {command}\n[sites.remote.proxy]\n{table}\n'
    try:
        site = parse_settings(text, Path("config.toml")).sites["remote"]
    except SettingsError as problem:
        return [f"{each['key']}: {each['message']}" for each in problem.problems]
    assert site.ssh is not None
    assert (site.ssh.auth, site.ssh.proxy) == ("gsi", site.proxy)
    return []


def test_a_proxy_table_is_read() -> None:
    assert problems("") == []
    assert problems('make = "grid-proxy-init"\nkey = "~/k"\npassphrase_file = "~/p"\nleast = "2h"') == []
    assert problems('make = "myproxy"\nserver = "m"\naccount = "a"\npassphrase_command = ["pass", "m"]') == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('passphrase = "x"', "secrets are not allowed here"),
        ('passphrase_file = "/p"', "is for a proxy that hibali makes"),
        ('make = "myproxy"', "needs server"),
        ('make = "myproxy"\nkey = "/k"', "cannot be used with"),
        ('make = "grid-proxy-init"\naccount = "a"', "cannot be used with"),
        ('make = "grid-proxy-init"\npassphrase_file = "/p"\npassphrase_variable = "P"', "only one of"),
        ('least = "0s"', "must be from 1m to 30d"),
        ('make = "myproxy"\naccount = "-x"', "is not an account"),
        ('key = "k"', "is not an absolute path"),
    ],
)
def test_wrong_tables_are_named(table: str, words: str) -> None:
    assert any(words in each for each in problems(table)), problems(table)


def test_gsissh_implies_gsi() -> None:
    for command in ('["/opt/bin/gsissh"]', '["gsissh", "-p2222"]', '["gsissh", "-F", "/f"]'):
        assert problems("", command) == []
