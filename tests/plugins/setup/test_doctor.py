"""Test `hibali doctor` at real servers, intact and with one fault at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.run_tools import Bench

OF_MACHINES = [
    "settings",
    "name",
    "connection",
    "host key",
    "login",
    "transport",
    "roots",
    "writes",
    "clock",
    "room",
]


def add_site(hibali: Any, name: str, table: str) -> None:
    path: Path = hibali.home.config
    text = path.read_text() if path.exists() else "version = 1\n"
    path.write_text(f"{text}[sites.{name}]\n{table}\n")
    path.chmod(0o600)


def ssh_table(name: str, host: str, command: list[str], more: str = "") -> str:
    return f'kind = "ssh"\n{more}\n[sites.{name}.ssh]\nhost = "{host}"\ncommand = {json.dumps(command)}'


PROPOSED = {"containers", "modules", "data nodes"}  # by what is installed on the machine of the tests


def steps(hibali: Any, *words: str, exit: int) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:  # noqa: A002
    """Return the verdicts by step name in order, the last fault, and the last record."""
    *records, last = hibali("doctor", *words, "--json", exit=exit).lines
    records = [each for each in records if each["kind"] == "step"]
    faults = [each for each in records if each["verdict"] == "fault"]
    return {each["name"]: each["verdict"] for each in records}, faults[-1] if faults else {}, last


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_cluster_is_checked_up_to_a_job_with_one_login_and_without_changes(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali)
    work = bench.add_slurm_site(slurm)
    home = names_below(slurm.home)
    verdicts, _, end = steps(hibali, "cluster", "--job", exit=0)
    assert [each for each in verdicts if each not in PROPOSED] == [
        *OF_MACHINES,
        "scheduler",
        "container",
        "job",
    ]
    assert set(verdicts.values()) == {"ok"}
    assert (end["kind"], end["count"]) == ("end", len(verdicts))
    assert not work.exists()
    assert names_below(slurm.home) == home
    assert hibali("sites", "usage", "cluster", "--json").lines[0]["hour"]["logins"] == 1
    shown = hibali("doctor", "cluster", exit=0)
    assert b"\nok         login " in shown.out
    assert b"hibali doctor cluster --job" in shown.err  # no host was contacted
    text = hibali.home.config.read_text()
    hibali.home.config.write_text(
        text.replace('directives = ["--mem=50"]', 'partition = "no-such-partition"')
    )
    verdicts, fault, last = steps(hibali, "cluster", "--job", exit=2)
    assert (fault["name"], last["exit"]) == ("scheduler", 2)
    assert (verdicts["container"], verdicts["job"]) == ("ok", "not-tried")


def test_the_first_connection_fault_is_reported_and_later_steps_are_not_tried(
    hibali: Any, ssh_server: Any, sftp_server: Any, tmp_path: Path
) -> None:
    add_site(hibali, "nowhere", ssh_table("nowhere", "no.such.host.invalid", ["ssh"]))
    verdicts, fault, _ = steps(hibali, "nowhere", exit=5)
    assert (fault["name"], fault["code"]) == ("name", "no-address")
    assert list(verdicts.values())[2:] == ["not-tried"] * (len(verdicts) - 2)

    add_site(hibali, "silent", ssh_table("silent", "127.0.0.1", ["ssh", "-p", "1"]))
    verdicts, fault, _ = steps(hibali, "silent", exit=5)
    assert (verdicts["name"], fault["name"], verdicts["login"]) == ("ok", "connection", "not-tried")

    config = ssh_server.config.read_text()
    known = tmp_path / "config"
    lines = [line for line in config.splitlines() if "KnownHosts" not in line]
    known.write_text("\n".join([*lines, f"UserKnownHostsFile {tmp_path}/none", "GlobalKnownHostsFile none"]))
    add_site(hibali, "stranger", ssh_table("stranger", ssh_server.host, ["ssh", "-F", str(known)]))
    verdicts, fault, last = steps(hibali, "stranger", exit=4)
    assert (fault["name"], last["code"], verdicts["login"]) == ("host key", "host-key", "not-tried")
    assert f"ssh -F {known} {ssh_server.host}" in fault["fix"]

    (tmp_path / "empty").touch(mode=0o600)
    keyless = tmp_path / "keyless"
    keyless.write_text("\n".join(line for line in config.splitlines() if "IdentityFile" not in line))
    words = ["ssh", "-F", str(keyless), "-i", str(tmp_path / "empty"), "-o", "IdentityAgent=none"]
    add_site(hibali, "locked", ssh_table("locked", ssh_server.host, words))
    verdicts, fault, last = steps(hibali, "locked", exit=4)
    assert (verdicts["host key"], fault["name"], last["code"]) == ("ok", "login", "login-refused")
    assert verdicts["transport"] == "not-tried"

    add_site(hibali, "plain", ssh_table("plain", sftp_server.host, sftp_server.command))
    verdicts, _, _ = steps(hibali, "plain", exit=0)
    assert (verdicts["login"], verdicts["transport"], verdicts["scheduler"]) == ("ok", "warning", "not-tried")
    assert verdicts["writes"] == "ok"


def test_all_faults_of_a_machine_are_reported(hibali: Any) -> None:
    folder: Path = hibali.home.folder
    (folder / "file").write_text("no folder\n")
    roots = f'roots = {{ data = "{folder}/data", gone = "{folder}/gone" }}\ndefault_root = "data"'
    container = '[sites.here.container]\nname = "shifter"\n[sites.here.scheduler]\nname = "lsf"'
    add_site(hibali, "here", f'kind = "local"\nwork = "{folder}/file/work"\n{roots}\n{container}')
    (folder / "data").mkdir()
    before = names_below(folder)
    verdicts, _, last = steps(hibali, "here", "--job", exit=3)
    assert {name for name, verdict in verdicts.items() if verdict == "fault"} == {
        "roots",
        "writes",
        "scheduler",
        "container",
    }
    assert (verdicts["room"], verdicts["job"], last["kind"]) == ("ok", "not-tried", "error")
    shown = hibali("doctor", "here").out.decode()
    assert "here:@gone: the root does not exist" in shown
    assert "hibali mkdir here:@gone" in shown
    assert "work: this is not a folder" in shown
    assert "bsub was not found" in shown
    assert {name for name in names_below(folder) if not name.startswith("state")} == {
        name for name in before if not name.startswith("state")
    }


def test_a_bucket_is_checked_and_each_fault_has_its_step(hibali: Any, object_store: Any) -> None:
    bucket = object_store.bucket()
    s3 = f'kind = "s3"\n[sites.{{0}}.s3]\nendpoint = "{object_store.endpoint}"\nbucket = "{{1}}"'
    add_site(hibali, "bucket", s3.format("bucket", bucket.name))
    add_site(hibali, "lost", s3.format("lost", "no-such-bucket"))
    add_site(
        hibali,
        "closed",
        s3.format("closed", bucket.name).replace(object_store.endpoint, "http://127.0.0.1:1"),
    )
    env = dict(object_store.env)
    verdicts, _, _ = steps_with(hibali, env, "bucket", exit=0)
    assert list(verdicts) == [
        "settings",
        "name",
        "connection",
        "endpoint",
        "credentials",
        "clock",
        "bucket",
        "writes",
    ]
    assert set(verdicts.values()) == {"ok"}
    assert bucket.keys() == []
    verdicts, fault, last = steps_with(hibali, env, "lost", exit=3)
    assert (fault["name"], last["code"], verdicts["writes"]) == ("bucket", "no-such-bucket", "not-tried")
    _, fault, _ = steps_with(hibali, env, "closed", exit=5)
    assert fault["name"] == "connection"
    verdicts, fault, _ = steps_with(hibali, {}, "bucket", exit=4)
    assert (fault["name"], fault["code"], verdicts["bucket"]) == (
        "credentials",
        "no-credentials",
        "not-tried",
    )
    _, fault, _ = steps_with(hibali, {**env, "AWS_SECRET_ACCESS_KEY": "wrong"}, "bucket", exit=4)
    assert fault["name"] == "credentials"
    assert hibali("doctor", "bucket", "--job", exit=2).err
    unknown = hibali("doctor", "bukcet", "--json", exit=2).last
    assert "Did you mean bucket?" in unknown["hint"]


def steps_with(
    hibali: Any,
    env: dict[str, str],
    *words: str,
    exit: int,  # noqa: A002
) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Return the steps with these variables, without those of other tests."""
    before = dict(hibali.env)
    hibali.env.update(env)
    try:
        return steps(hibali, *words, exit=exit)
    finally:
        hibali.env.clear()
        hibali.env.update(before)
