"""Test `hibali sites import`: hosts of a real ssh configuration, remotes written by rclone, and a centre's profile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import Terminal
from tests.support.web_server import WebServer

PROFILE = """version = 1
[sites.cluster]
kind = "ssh"
[sites.cluster.ssh]
host = "far"
[sites.cluster.scheduler]
name = "slurm"
"""


def sites_of(hibali: Any) -> dict[str, Any]:
    path: Path = hibali.home.config
    return tomllib.loads(path.read_text())["sites"] if path.exists() else {}


def test_ssh_hosts_are_proposed_and_an_added_one_works(hibali: Any, ssh_server: Any) -> None:
    folder: Path = hibali.home.folder
    (folder / "more").mkdir()
    (folder / "config").write_text(
        "Include more/*\nHost *.example.org !far\nHost -oProxyCommand=touch\nHost forge\n  User git\n"
    )
    # ssh finds the Include from the folder of a configuration given with -F, as from ~/.ssh
    (folder / "config").write_text((folder / "config").read_text().replace("more/*", f"{folder}/more/*"))
    (folder / "more/servers").write_text(ssh_server.config.read_text())
    words = ("sites", "import", "ssh", "--ssh-config", "config")
    *proposals, end = hibali(*words, "--json", exit=0).lines
    found = {each["name"]: each for each in proposals}
    assert (found["far"]["change"], found["forge"]["change"]) == ("planned", "passed")
    assert "-oProxyCommand=touch" in found
    assert found["-oProxyCommand=touch"]["toml"] is None
    assert (end["kind"], end["count"]) == ("end", 3)
    assert not sites_of(hibali)  # without a terminal only --yes adds a site
    shown = hibali(*words, exit=0)
    assert f"127.0.0.1:{ssh_server.port}".encode() in shown.out
    assert b"--yes" in shown.err
    near = hibali(*words, "--only", "fra", "--json", exit=3).last
    assert "Did you mean far?" in near["hint"]
    assert hibali(*words, "--only", "far", "--yes", exit=0).err.count(b"hibali doctor far") == 1
    assert list(sites_of(hibali)) == ["far"]
    hibali("ls", "far:", exit=0)
    again = hibali(*words, "--yes", "--json", exit=0).lines
    assert [each["change"] for each in again if each["kind"] == "site-change"] == ["same"]


def test_remotes_of_rclone_are_imported_without_their_passwords(hibali: Any) -> None:
    path = hibali.home.folder / "rclone.conf"

    def rclone(*words: str) -> None:
        subprocess.run(
            [Path(sys.executable).parent / "rclone", "--config", path, "config", *words],
            check=True,
            capture_output=True,
        )

    s3 = ("provider=Ceph", "endpoint=s3.example.org", "access_key_id=AK", "secret_access_key=S3CRETKEY")
    rclone("create", "Big Data", "s3", *s3)
    rclone(
        "create",
        "login",
        "sftp",
        "host=hpc.example.org",
        "user=me",
        "port=2222",
        "pass=S3CRETKEY",
        "--obscure",
    )
    rclone(
        "create",
        "cloud",
        "webdav",
        "url=https://cloud.example.org/dav",
        "user=me",
        "pass=S3CRETKEY",
        "--obscure",
    )
    rclone("create", "drive", "alias", "remote=/tmp")
    obscured = [line.partition(" = ")[2] for line in path.read_text().splitlines() if line.startswith("pass")]
    env = {"RCLONE_CONFIG": str(path)}
    done = hibali("sites", "import", "--from", "rclone", "--yes", "-v", env=env, exit=0)
    everything = done.out + done.err + hibali.home.config.read_bytes()
    for secret in ("S3CRETKEY", "AK\n", *obscured):
        assert secret.encode() not in everything
    assert b"aws configure --profile big-data" in done.out
    assert b"--credentials-command" in done.out
    assert b"drive" in done.err
    assert sites_of(hibali) == {
        "big-data": {"kind": "s3", "s3": {"endpoint": "https://s3.example.org", "profile": "big-data"}},
        "login": {"kind": "ssh", "ssh": {"host": "me@hpc.example.org", "command": ["ssh", "-p", "2222"]}},
        "cloud": {"kind": "url", "url": "davs://cloud.example.org/dav"},
    }
    path.write_text("# Encrypted rclone configuration File\n\nRCLONE_ENCRYPT_V0:\nAAAA\n")
    refused = hibali("sites", "import", "rclone", "--json", env=env, exit=2).last
    assert (refused["code"], "rclone config show" in refused["hint"]) == ("encrypted-config", True)


def test_a_profile_is_shown_and_added_and_never_replaces_existing_sites(hibali: Any, tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    (published / "profile.toml").write_text(PROFILE)
    with contextlib.closing(WebServer(published)) as server:
        url = f"{server.url}/profile.toml"
        assert (
            b'[sites.cluster.ssh]\nhost = "me@far"'
            in hibali("sites", "import", url, "--user", "me", exit=0).out
        )
        assert not sites_of(hibali)
        hibali("sites", "import", url, "--user", "me", "--account", "brain", "--yes", exit=0)
    before = hibali.home.config.read_bytes()
    assert sites_of(hibali)["cluster"]["scheduler"] == {"name": "slurm", "account": "brain"}
    other = tmp_path / "other.toml"
    other.write_text(
        PROFILE.replace("far", "evil.example.org") + '[sites.more]\nkind = "url"\nurl = "https://h/"\n'
    )
    refused = hibali("sites", "import", other, "--yes", "--json", exit=8).last
    assert (refused["code"], refused["about"]) == ("site-differs", "cluster")
    assert hibali.home.config.read_bytes() == before  # nothing of it was added
    hibali("sites", "import", other, "--only", "more", "--yes", exit=0)
    hibali("sites", "import", other, "--yes", "--replace", exit=0)
    assert sites_of(hibali)["cluster"]["ssh"]["host"] == "evil.example.org"


def test_a_hostile_profile_is_refused_before_anything_is_executed(hibali: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    hostile = tmp_path / "hostile.toml"
    hostile.write_text(
        f'{PROFILE}[sites.evil]\nkind = "ssh"\n[sites.evil.ssh]\nhost = "far"\ncommand = ["touch", "{mark}"]\n'
    )
    refused = hibali("sites", "import", hostile, "--yes", "--json", exit=8).last
    assert refused["code"] == "unfit-profile"
    assert "evil.ssh.command" in refused["message"]
    hostile.write_text('version = 1\n[sites."../../x"]\nkind = "ssh"\nssh = { host = "-oProxyCommand=id" }\n')
    assert hibali("sites", "import", hostile, "--yes", "--json", exit=2).last["code"] == "invalid-profile"
    hostile.write_text("#" * 300_000)
    assert hibali("sites", "import", hostile, "--yes", "--json", exit=8).last["code"] == "too-large"
    plain = hibali("sites", "import", "http://example.org/p.toml", "--yes", "--json", exit=8).last
    assert plain["code"] == "not-https"
    # a private address that nothing mentions
    hibali("sites", "import", "https://127.0.0.1:1/p.toml", "--json", exit=8)
    assert hibali("sites", "import", "nothing.toml", "--json", exit=3).last["code"] == "no-such-file"
    assert not mark.exists()
    assert not hibali.home.config.exists()


PROLOGUE = PROFILE + 'prologue = ["module use /other/modules", "module load x"]\n'


@pytest.mark.parametrize("words", [("sites", "import"), ("init", "--no-push", "--from")])
def test_yes_does_not_let_a_profile_run_lines_in_jobs(
    hibali: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    profile = tmp_path / "profile.toml"
    profile.write_text(PROLOGUE + '[sites.more]\nkind = "url"\nurl = "https://h/"\n')
    shown = hibali("sites", "import", profile, exit=0)
    assert b"# Each of your jobs runs this line of the profile: module use /other/modules" in shown.out
    refused = hibali(*words, profile, "--yes", "--json", exit=8).last
    assert (refused["code"], refused["about"]) == ("prologue-unconfirmed", "cluster")
    assert "module use /other/modules; module load x" in refused["message"]
    assert not sites_of(hibali)  # also not the other one
    hibali("sites", "import", profile, "--only", "more", "--yes", exit=0)
    hibali("sites", "import", profile, "--yes", "--accept-prologue", exit=0)
    assert sites_of(hibali)["cluster"]["scheduler"]["prologue"] == [
        "module use /other/modules",
        "module load x",
    ]
    hibali("sites", "import", profile, "--yes", exit=0)  # nothing is new
    profile.write_text(PROLOGUE.replace("load x", "load y"))
    again = hibali("sites", "import", profile, "--yes", "--replace", "--json", exit=8).last
    assert "module load y" in again["message"]


def test_a_person_is_asked_for_the_lines_of_a_profile(hibali: Any) -> None:
    (hibali.home.folder / "profile.toml").write_text(PROLOGUE)
    command = hibali.command("sites", "import", "profile.toml", "--yes")
    for answer, code in (("n", 8), ("y", 0)):
        terminal = Terminal(command, hibali.env, cwd=hibali.home.folder, columns=120)
        terminal.until(lambda screen: screen.endswith("Allow this? [y/N]"))
        assert b"module use /other/modules; module load x" in terminal.written
        terminal.press(f"{answer}\r".encode())
        assert terminal.end() == code
        assert bool(sites_of(hibali)) is (code == 0)
