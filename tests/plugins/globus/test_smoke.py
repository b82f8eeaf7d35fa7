"""Test `make globus-smoke`, the check by a user with an account, as much as is possible without one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.globus import Globus
from tests.services.session import REPOSITORY
from tests.support.terminal import Terminal

_URL = re.compile(rb"(http://\S+/v2/oauth2/authorize\S*)\r\n")


@pytest.mark.heavy
@pytest.mark.parametrize("broken", [False, True])
def test_the_check_with_an_account_reports_what_works_and_leaves_no_files(
    globus: Globus, hibali: Any, tmp_path: Path, *, broken: bool
) -> None:
    source, target, temporary = tmp_path / "source", tmp_path / "target", tmp_path / "temporary"
    (source / "share" / "one").mkdir(parents=True)
    (source / "share" / "one" / "a b").write_bytes(b"1" * 70_000)
    (source / "share" / "c").write_bytes(b"2")
    (target / "home").mkdir(parents=True)
    temporary.mkdir()
    ends = [
        globus.make_collection(source, entity_type="GCSv5_guest_collection", https=True),
        globus.make_collection(target, home="/home", data_access=True, https=True),
    ]
    if broken:
        globus.fault("permission_denied", path="*/a b", fatal=True)
    env = {
        **hibali.env,
        **globus.env,
        "PYTHON": sys.executable,
        "TMPDIR": str(temporary),
        "CLIENT_ID": globus.native_id,
        "SOURCE": f"{ends[0].id}:/share",
        "TARGET": f"{ends[1].id}:/~/",
    }
    terminal = Terminal(["sh", str(REPOSITORY / "tests" / "globus_smoke.sh")], env, cwd=REPOSITORY)
    for number in range(2):  # the login, and the consent to the target's data
        terminal.until(lambda _, number=number: terminal.written.count(b"Code: ") > number)
        url = _URL.findall(terminal.written)[number].decode()
        terminal.press(globus.approve(url).encode() + b"\r")
    code = terminal.end(120)
    output = terminal.written.decode()
    assert (code != 0) is broken, output
    assert (
        "while copying /share" if broken else "no files to move, verify by digest and delete work"
    ) in output
    assert [path.name for path in (target / "home").iterdir()] == []
    assert list(temporary.iterdir()) == []
    assert sum(each["path"].endswith("/token/revoke") for each in globus.requests()) == 6
