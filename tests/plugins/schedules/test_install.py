"""Test editing crontabs and systemd units: foreign lines are kept byte for byte, hibali's are unambiguous."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import RefusedError, UsageError
from hibali_plugins.schedules.install import crontab_line, service_text, split_block, timer_text, with_block

OWNER = "/home/me/.config/hibali/schedules.toml"
OTHER = "/elsewhere/schedules.toml"
FOREIGN = b'MAILTO=""\n# caf\xe9\r\n0   3 *\t* * /bin/a  b % c\n\n  nonsense\n@reboot x\nno newline'


@given(st.binary(max_size=200), st.lists(st.text("ab %*", max_size=10), max_size=3))
def test_foreign_lines_are_kept(foreign: bytes, lines: list[str]) -> None:
    once = with_block(foreign, OWNER, lines)
    assert with_block(once, OWNER, lines) == once
    assert split_block(once, OWNER)[1] == lines
    assert with_block(once, OWNER, []) == foreign


def test_each_configuration_has_a_block_of_its_own() -> None:
    both = with_block(with_block(FOREIGN, OWNER, ["a"]), OTHER, ["b"])
    assert split_block(both, OWNER)[1] == ["a"]
    changed = with_block(both, OWNER, ["c", "d"])
    assert split_block(changed, OTHER)[1] == ["b"]
    assert with_block(with_block(changed, OTHER, []), OWNER, []) == FOREIGN


def test_damaged_marks_are_rejected() -> None:
    whole = with_block(FOREIGN, OWNER, ["a"])
    lines = whole.splitlines(keepends=True)
    for broken in (b"".join(lines[1:]), b"".join([lines[0], *lines]), b"".join(lines[:2] + lines[3:])):
        with pytest.raises(RefusedError):
            with_block(broken, OWNER, ["a"])


def test_cron_reads_a_line_as_intended() -> None:
    line = crontab_line("0 3 * * *", ["/opt/100% x/hibali", "run", "a'b"], {"HIBALI_CONFIG": "/c d"}, "/l%g")
    assert "%" not in line.replace("\\%", "")
    command = line.removeprefix("0 3 * * * ").replace("\\%", "%")  # what cron passes to the shell
    assert shlex.split(command) == [
        "/usr/bin/env", "HIBALI_CONFIG=/c d", "/opt/100% x/hibali", "run", "a'b", ">>/l%g", "2>&1",
    ]  # fmt: skip
    for hostile in ("a\nb", "a\rb", "a\x00b"):
        with pytest.raises(UsageError):
            crontab_line("0 3 * * *", [hostile], {}, "/log")
        with pytest.raises(UsageError):
            service_text("x", [hostile], {}, "/log")


def test_units_of_systemd() -> None:
    timer = timer_text("nightly", ["*-*-* 03:00:00"], make_up=True)
    assert "OnCalendar=*-*-* 03:00:00\n" in timer
    assert "Persistent=true\n" in timer
    service = service_text("nightly", ["/opt/100%/hibali", "$x", 'a"b'], {"A": "1 2"}, "/l")
    assert 'ExecStart="/opt/100%%/hibali" "$$x" "a\\"b"\n' in service
    assert 'Environment="A=1 2"\n' in service
