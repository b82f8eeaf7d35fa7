"""Test `sites check --tune`: a slow connection is measured, settings are proposed, and no files remain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.locations import read_location
from hibali_cli.handlers.site_check import tune_and_print
from hibali_cli.options import Common
from hibali_cli.output import Output
from tests.schemas import check_lines
from tests.support.faulty_proxy import LatencyProxy
from tests.support.transfers import Transfers
from transfers import check
from transfers.check import Trial, propose, settings_to_try


def trial(logins: int, channels: int, up: int, down: int) -> Trial:
    return Trial(logins, channels, channels, up, down, 1)


def test_more_settings_are_tried_only_if_useful_and_allowed() -> None:
    assert settings_to_try(0.0005, 8) == [(1, 1)]
    assert settings_to_try(0.1, 1) == [(1, 1), (1, 4), (1, 8)]
    assert settings_to_try(0.1, 3)[3:] == [(2, 8), (3, 8)]
    assert settings_to_try(0.1, 16)[3:] == [(2, 8), (4, 8), (8, 8), (16, 16)]
    assert settings_to_try(0.1, 8, rate=1_000_000) == [(1, 1)]


def test_the_smallest_sufficient_setting_is_proposed() -> None:
    one, four, eight = trial(1, 1, 16, 16), trial(1, 4, 60, 62), trial(1, 8, 64, 60)
    assert propose([one, four, eight]) == four
    assert propose([one, four, eight, trial(4, 8, 110, 110)]) == trial(4, 8, 110, 110)
    assert propose([trial(1, 1, 100, 10), trial(1, 4, 10, 100), trial(1, 8, 60, 60)]) == trial(1, 8, 60, 60)
    assert propose([trial(1, 1, 0, 0)]) == trial(1, 1, 0, 0)
    assert propose([]) is None


@pytest.fixture
def distant(transfers_to: Any) -> Iterator[tuple[Transfers, LatencyProxy]]:
    """Return an ssh site behind a connection with a round trip of 30 ms."""
    there = transfers_to("ssh")
    proxy = LatencyProxy(there.place.server.port, 0.015)
    config = there.hibali.home.config
    through = f', "-o", "Port={proxy.port}", "-o", "HostKeyAlias={there.place.server.host}"]\n'
    config.write_text(
        re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + through, config.read_text())
    )
    yield there, proxy
    proxy.close()


def test_a_refused_login_is_not_measured(
    distant: tuple[Transfers, LatencyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, proxy = distant
    ssh = there.folder / "ssh"
    ssh.write_text(
        "#!/bin/sh\ncase $* in *ControlMaster=yes*-[1-9]\\ *)"
        ' echo "Permission denied (publickey)." >&2; exit 255;; esac\nexec ssh "$@"\n'
    )
    ssh.chmod(0o755)
    config = there.hibali.home.config
    config.write_text(config.read_text().replace('command = ["ssh"', f'command = ["{ssh}"'))
    site = load_sites(str(config)).site("there")
    monkeypatch.setenv("XDG_RUNTIME_DIR", there.hibali.env["XDG_RUNTIME_DIR"])
    monkeypatch.setattr(check, "settings_to_try", lambda *_: [(1, 1), (2, 4), (4, 8)])
    monkeypatch.setattr(check, "TRIAL_BYTES", 8 * 1024 * 1024)
    found = check.tune(site, read_location("there:", load_sites(str(config))), 4)
    assert [(one.logins, one.channels) for one in found.trials] == [(1, 1)]
    assert found.because == "2 logins could not be opened"
    assert proxy.connections == 1
    assert list(there.place.root.iterdir()) == []


@pytest.mark.heavy
def test_a_slow_connection_is_measured_and_no_files_remain(
    distant: tuple[Transfers, LatencyProxy],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there, proxy = distant
    there.make({b"mine": b"stays"})
    there.push()
    monkeypatch.setenv("XDG_RUNTIME_DIR", there.hibali.env["XDG_RUNTIME_DIR"])
    # in total half a minute on this machine
    monkeypatch.setattr(check, "settings_to_try", lambda *_: [(1, 1), (1, 2), (2, 4)])
    monkeypatch.setattr(check, "TRIAL_BYTES", 8 * 1024 * 1024)
    settings = load_sites(str(there.hibali.home.config))
    tune_and_print(
        Common(Output(json=True)), settings.site("there"), read_location("there:", settings), logins=2
    )
    *_, record = check_lines(capsys.readouterr().out.encode())
    assert record["round_trip_seconds"] >= 0.03
    assert record["login_seconds"] > 0.03
    tried = [(one["logins"], one["channels"]) for one in record["trials"]]
    assert tried == [(1, 1), (1, 2), (2, 4)]
    assert all(one["lines"] >= one["channels"] for one in record["trials"])
    assert all(0 < one["bytes"] <= check.TRIAL_BYTES for one in record["trials"])
    assert all(one["bytes_per_second_up"] and one["bytes_per_second_down"] for one in record["trials"])
    assert (record["proposed"]["logins"], record["proposed"]["channels"]) in tried
    assert proxy.connections == 2
    assert there.there() == {b"mine": b"stays"}
    assert not [path for path in there.place.root.iterdir() if path.name != "data"]


def test_a_fast_connection_needs_one_channel_and_other_sites_have_no_setting(transfers_to: Any) -> None:
    there = transfers_to("local")
    [_, record] = check_lines(there.hibali("sites", "check", "there", "--tune", "--json", exit=0).out)
    assert (record["trials"], record["proposed"]) == ([], None)
    assert "only ssh sites" in record["because"]
    assert there.hibali("sites", "check", "there", "--logins", "2").exit == 2


@pytest.mark.parametrize("word", ["ssh", "sftp"])
def test_a_fast_site_is_measured_with_few_requests(transfers_to: Any, word: str) -> None:
    there = transfers_to(word)
    done = there.hibali("sites", "check", "there", "--tune", exit=0)
    if word == "ssh":
        rows = re.findall(r"^ +1 +[148] +[0-9.]+ .?B/s +[0-9.]+ .?B/s$", done.out.decode(), re.MULTILINE)
        # a loaded machine is not fast enough to be sure
        assert len(rows) in {1, 3}
        assert (b"[sites.there.ssh]" in done.out) == (len(rows) > 1)
        assert ("One channel is enough for this connection." in done.err.decode()) == (len(rows) == 1)
    else:
        assert "SFTP always uses one channel" in done.err.decode()
