"""Test `hibali sites` as a user types it, and its JSON against the schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.schemas import check_line


def add_cluster(hibali: Any, *more: str, code: int = 0) -> Any:
    words = ["--ssh", "login", "--root", "scratch=$SCRATCH/x", "--scheduler", "slurm", "--no-check"]
    return hibali("sites", "add", "cluster", *words, *more, exit=code)


def test_a_site_is_added_shown_listed_and_removed(hibali: Any) -> None:
    assert check_line(add_cluster(hibali, "--json").last)["change"] == "added"
    shown = check_line(hibali("sites", "show", "cluster", "--json", exit=0).last)
    assert shown["ssh"]["host"] == "login"
    assert shown["roots"] == {"scratch": "$SCRATCH/x"}
    site, end = hibali("sites", "list", "--json", exit=0).lines
    assert check_line(site) == shown
    assert check_line(end)["count"] == 1
    assert b"cluster" in hibali("sites", "list", exit=0).out
    assert b"slurm" in hibali("sites", "show", "cluster", exit=0).out
    assert check_line(hibali("sites", "remove", "cluster", "--json", exit=0).last)["change"] == "removed"
    assert hibali("sites", "list", "--json", exit=0).last["count"] == 0


def test_adding_the_same_site_again_is_0_and_another_one_is_8(hibali: Any) -> None:
    add_cluster(hibali)
    assert add_cluster(hibali, "--json").last["change"] == "same"
    refusal = check_line(add_cluster(hibali, "--account", "brain", "--json", code=8).last)
    assert "--replace" in refusal["hint"]
    assert add_cluster(hibali, "--account", "brain", "--replace", "--json").last["change"] == "replaced"


def test_a_dry_run_prints_the_toml_and_writes_nothing(hibali: Any) -> None:
    done = add_cluster(hibali, "--dry-run")
    assert done.out.startswith(b"[sites.cluster]\n")
    assert not hibali.home.config.exists()
    assert check_line(add_cluster(hibali, "--dry-run", "--json").last)["toml"] == done.out.decode()
    hibali.home.config.write_bytes(b"version = 1\n" + done.out)
    hibali.home.config.chmod(0o600)
    assert add_cluster(hibali, "--json").last["change"] == "same"


def test_every_option_sets_its_key(hibali: Any) -> None:
    words = [
        "--ssh",
        "h",
        "--data-ssh",
        "d",
        "--transport",
        "agent",
        "--logins",
        "2",
        "--channels",
        "3",
        "--root",
        "a=/a",
        "--root",
        "b=~/b",
        "--default-root",
        "a",
        "--work",
        "@b/w",
        "--scheduler",
        "slurm",
        "--account",
        "x",
        "--partition",
        "p",
        "--container",
        "podman",
        "--gridftp",
        "gsiftp://h:2811",
        "--no-check",
    ]
    hibali("sites", "add", "full", *words, "--ssh-command", "gsissh -p '2 2'", exit=0)
    site = hibali("sites", "show", "full", "--json").last
    assert site["ssh"] | {"auth": "ssh", "python": "python3", "persist_seconds": 600} == {
        "host": "h",
        "data_host": "d",
        "data_hosts": [],
        "command": ["gsissh", "-p", "2 2"],
        "transport": "agent",
        "logins": 2,
        "channels": 3,
        "auth": "ssh",
        "python": "python3",
        "persist_seconds": 600,
        "read_back": True,
        "certificate": None,
    }
    assert (site["roots"], site["default_root"], site["work"]) == ({"a": "/a", "b": "~/b"}, "a", "@b/w")
    assert (site["scheduler"]["account"], site["scheduler"]["partition"]) == ("x", "p")
    assert site["container"] == "podman"
    assert site["gridftp"]["url"] == "gsiftp://h:2811"
    words = [
        "--s3",
        "https://s3.example.org",
        "--bucket",
        "b",
        "--prefix",
        "p",
        "--region",
        "r",
        "--profile",
        "x",
        "--no-check",
    ]
    hibali("sites", "add", "store", *words, exit=0)
    expected = {
        "endpoint": "https://s3.example.org",
        "bucket": "b",
        "prefix": "p",
        "region": "r",
        "profile": "x",
    }
    assert hibali("sites", "show", "store", "--json").last["s3"].items() >= expected.items()
    hibali("sites", "add", "open", "--s3", "aws", "--anonymous", "--no-check", exit=0)
    hibali("sites", "add", "cred", "--s3", "aws", "--credentials-command", "pass b", "--no-check", exit=0)


def test_a_local_folder_is_a_root_and_the_default(hibali: Any, tmp_path: Path) -> None:
    hibali("sites", "add", "here", "--local", "data", "--no-check", exit=0, cwd=tmp_path)
    site = hibali("sites", "show", "here", "--json").last
    assert (site["roots"], site["default_root"]) == ({"data": str(tmp_path / "data")}, "data")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--ssh", "h", "--local", "/x"],
        ["--local", "/x", "--bucket", "b"],
        ["--s3", "aws", "--channels", "2"],
        ["--ssh", "-oProxyCommand=x"],
        ["--s3", "http://far.example.org"],
        ["--ssh", "h", "--root", "noequals"],
        ["--ssh", "h", "--root", "a=b"],
        ["--ssh", "h", "--default-root", "none"],
        ["--ssh", "h", "--ssh-command", "'"],
        ["--ssh", "h", "--account", "a"],
        ["--ssh", "h", "--transport", "pigeon"],
    ],
)
def test_invalid_settings_are_2_and_not_written(hibali: Any, words: list[str]) -> None:
    done = hibali("sites", "add", "other", *words, "--no-check", "--json", exit=2)
    check_line(done.last)
    assert not hibali.home.config.exists()


@pytest.mark.parametrize("name", ["x", "a/b", "a:b", "-a", "1a", "_a", "a b"])
def test_names_that_locations_could_not_use_are_2(hibali: Any, name: str) -> None:
    hibali("sites", "add", "--no-check", "--local", "/x", "--", name, exit=2)
    assert not hibali.home.config.exists()


def test_a_name_that_differs_only_by_case_is_2(hibali: Any) -> None:
    hibali("sites", "add", "--no-check", "--local", "/x", "Lab_1", exit=0)
    refused = hibali("sites", "add", "--no-check", "--local", "/x", "lab_1", "--json", exit=2).last
    assert "Lab_1" in refused["message"]
    refused = hibali(
        "sites", "add", "--no-check", "--local", "/y", "LAB_1", "--replace", "--json", exit=2
    ).last
    assert refused["message"] == "its name differs from that of Lab_1 only in upper and lower case"


def test_a_removed_site_is_no_longer_the_default(hibali: Any) -> None:
    hibali("sites", "add", "--no-check", "--local", "/x", "lab", exit=0)
    hibali("config", "set", "default-site", "lab", exit=0)
    assert b"there is none now" in hibali("sites", "remove", "lab", exit=0).err
    assert hibali("config", "get", "default-site", "--json", exit=3).last["code"] == "not-set"


def test_names_and_paths_that_a_config_cannot_hold_are_2(hibali: Any) -> None:
    for path in (b"/a\xff", "/a\nb"):
        hibali("sites", "add", "other", "--no-check", "--local", path, exit=2)
    error = hibali("sites", "add", b"x\xff\n", "--no-check", "--local", "/x", "--json", exit=2).last
    assert check_line(error)["about"] == "x\\xff\\n"


def test_errors_in_the_file_are_reported_with_their_lines(hibali: Any) -> None:
    hibali.home.config.write_text('version = 1\n[sites.here]\nkind = "local"\nrotos = {}\nwork = 3\n')
    hibali.home.config.chmod(0o600)
    error = check_line(hibali("sites", "list", "--json", exit=2).last)
    assert [found["line"] for found in error["problems"]] == [4, 5]


def test_a_file_that_others_can_write_is_8(hibali: Any) -> None:
    hibali.home.config.write_text("version = 1\n")
    hibali.home.config.chmod(0o666)
    assert check_line(hibali("sites", "list", "--json", exit=8).last)["code"] == "not-private"


def test_the_config_option_has_priority(hibali: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    hibali("sites", "add", "here", "--local", "/x", "--no-check", "--config", other, exit=0)
    assert other.exists()
    assert not hibali.home.config.exists()


@pytest.mark.parametrize("command", ["show", "check", "remove"])
def test_an_unknown_site_is_2(hibali: Any, command: str) -> None:
    assert check_line(hibali("sites", command, "nowhere", "--json", exit=2).last)["code"] == "unknown-site"


def test_a_reachable_site_reports_its_facts(hibali: Any, tmp_path: Path) -> None:
    lines = hibali("sites", "add", "here", "--local", tmp_path, "--json", exit=0).lines
    assert [check_line(line)["kind"] for line in lines] == ["site-change", "site-check"]
    assert lines[-1]["facts"]["python"]
    assert lines[-1]["problems"] == []
    assert b"python" in hibali("sites", "check", "here", exit=0).out


def test_a_failed_check_keeps_the_site(hibali: Any, tmp_path: Path) -> None:
    hibali("sites", "add", "gone", "--local", tmp_path / "none", exit=3)
    assert hibali("sites", "show", "gone", exit=0)
    lines = hibali("sites", "check", "gone", "--json", exit=3).lines
    assert [check_line(line)["kind"] for line in lines] == ["site-check", "error"]


def test_a_rejected_login_is_4_and_keeps_the_site(hibali: Any) -> None:
    refusing = "sh -c 'echo Permission denied \\(publickey\\). >&2; exit 255'"
    done = hibali("sites", "add", "closed", "--ssh", "127.0.0.1", "--ssh-command", refusing, "--json", exit=4)
    assert check_line(done.last)["transient"] is False
    assert hibali("sites", "list", "--json").lines[0]["name"] == "closed"


def test_quiet_prints_nothing(hibali: Any) -> None:
    assert add_cluster(hibali, "-q").err == b""
