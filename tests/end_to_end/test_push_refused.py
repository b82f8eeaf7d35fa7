"""Test the errors that stop a push, and their exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.services.processes import free_port
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers, counts, failed, path_of
from tests.support.trees import File


def stopped(there: Transfers, code: int, *words: Any) -> Any:
    """Check that the command ends with this exit code and an error record, without a traceback."""
    answer = there.hibali(*words, "--json", exit=code)
    assert (answer.last["kind"], answer.last["exit"]) == ("error", code)
    assert b"Traceback" not in answer.err
    return answer.last


def site(there: Transfers, name: str, text: str) -> None:
    config = there.hibali.home.config
    config.write_text(config.read_text() + f"[sites.{name}]\n{text}\n")


def test_a_missing_source_is_3(there: Transfers) -> None:
    error = stopped(there, 3, "push", there.source, "there:data")
    assert str(there.source) in error["about"]
    stopped(there, 3, "pull", "there:nowhere", there.folder / "back")
    stopped(there, 3, "ls", "there:nowhere")
    assert there.place.names("") == set()
    assert not (there.folder / "back").exists()


def test_an_unknown_site_is_2_and_never_a_local_file(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1"})
    error = stopped(there, 2, "push", there.source, "thare:data")
    assert "there" in error["hint"]
    assert not (there.hibali.home.folder / "thare:data").exists()
    there.hibali("sync", there.source, "./thare:data", exit=0)
    assert (there.hibali.home.folder / "thare:data/a").exists()


@pytest.mark.parametrize("path", ["../x", "a/../../x", "~other/x", "@nothing/x"])
def test_a_path_outside_the_root_or_of_another_home_is_2(folder_there: Transfers, path: str) -> None:
    folder_there.make({b"a": b"1"})
    stopped(folder_there, 2, "push", folder_there.source, f"there:{path}")


def test_a_read_only_root_is_8(transfers_to: Any, tmp_path: Path) -> None:
    there = transfers_to("local")
    archive = tmp_path / "archive"
    archive.mkdir()
    site(
        there,
        "vault",
        f'kind = "local"\nread_only = ["archive"]\n[sites.vault.roots]\narchive = {json.dumps(str(archive))}',
    )
    there.make({b"a": b"1"})
    stopped(there, 8, "push", there.source, "vault:@archive/x")
    stopped(there, 8, "push", there.source, f"vault:{archive}/x")
    stopped(there, 8, "push", there.source, "vault:@archive/x", "--dry-run")
    assert list(archive.iterdir()) == []
    (archive / "b").write_bytes(b"2")
    there.hibali("pull", "vault:@archive", tmp_path / "back", exit=0)


def test_a_read_only_root_is_recognized_by_any_name_and_from_above(
    folder_there: Transfers, tmp_path: Path
) -> None:
    there = folder_there
    archive = tmp_path / "project" / "archive"
    archive.mkdir(parents=True)
    (tmp_path / "link").symlink_to(archive)
    there.hibali.env["ARCHIVE"] = str(archive)
    root = "$ARCHIVE" if there.place.word == "local" else str(tmp_path / "link")
    table = there.place.table().replace("{name}", "vault")
    table = table.replace(
        "[sites.vault.roots]", f'read_only = ["archive"]\n[sites.vault.roots]\narchive = "{root}"'
    )
    site(there, "vault", table)
    there.make({b"a": b"1"})
    for place in (archive, archive / "x", tmp_path / "link" / "x", archive.parent):
        error = stopped(there, 8, "push", there.source, f"vault:{place}")
        assert error["code"] == "read-only-root"
    stopped(there, 8, "push", there.source, f"vault:{archive.parent}", "--dry-run")
    stopped(there, 8, "push", there.source / "a", f"vault:{archive}/")
    assert list(archive.iterdir()) == []
    there.hibali("push", there.source / "a", f"vault:{archive.parent}/", exit=0)
    there.hibali("push", there.source, f"vault:{archive}-x", exit=0)
    assert (archive.parent / "a").exists()


def test_an_unreachable_host_is_5(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1"})
    site(
        there,
        "gone",
        f'kind = "ssh"\n[sites.gone.ssh]\nhost = "127.0.0.1"\ncommand = ["ssh", "-F", "none", "-p", "{free_port()}"]\n'
        '[sites.gone.limits]\nlogin_interval = "0s"',
    )
    error = stopped(there, 5, "push", there.source, "gone:data")
    assert "127.0.0.1" in error["about"]


def test_an_unreachable_object_store_is_5(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"a": b"1"})
    site(
        there,
        "gone",
        f'kind = "s3"\n[sites.gone.s3]\nendpoint = "http://127.0.0.1:{free_port()}"\nbucket = "b"\nregion = "us-east-1"',
    )
    stopped(there, 5, "push", there.source, "gone:data")


def test_a_rejected_login_is_4_and_is_not_retried(transfers_to: Any, ssh_server: Any) -> None:
    there = transfers_to("ssh")
    there.make({b"a": b"1"})
    key = there.folder / "other_key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, stdin=subprocess.DEVNULL
    )
    config = there.folder / "ssh_config"
    config.write_text(ssh_server.config.read_text().replace(f"{ssh_server.folder}/login_key", str(key)))
    words = json.dumps(["ssh", "-F", str(config), "-v"])
    site(there, "closed", f'kind = "ssh"\n[sites.closed.ssh]\nhost = "far"\ncommand = {words}')
    answer = there.hibali("push", there.source, "closed:data", "--json", exit=4)
    assert answer.last["code"] == "login-refused"
    assert "ssh" in answer.last["hint"]
    assert not [line for line in answer.lines if line["kind"] == "retried"]


def test_an_unknown_host_key_is_4(transfers_to: Any, ssh_server: Any) -> None:
    there = transfers_to("ssh")
    there.make({b"a": b"1"})
    config = there.folder / "ssh_config"
    config.write_text(ssh_server.config.read_text().replace(f"{ssh_server.folder}/known_hosts", "/dev/null"))
    words = json.dumps(["ssh", "-F", str(config)])
    site(there, "strange", f'kind = "ssh"\n[sites.strange.ssh]\nhost = "far"\ncommand = {words}')
    error = stopped(there, 4, "push", there.source, "strange:data")
    assert (error["code"], "not known here yet" in error["message"]) == ("host-key", True)
    assert fingerprint(Path(ssh_server.folder, "host_key.pub")) in error["message"]
    assert error["hint"].endswith(f"logging in once yourself: ssh -F {config} far")


def fingerprint(key: Path) -> str:
    return (
        subprocess.run(["ssh-keygen", "-lf", key], check=True, capture_output=True).stdout.decode().split()[1]
    )


@pytest.mark.parametrize(("server", "transport"), [("ssh_server", "agent"), ("sftp_server", "sftp")])
def test_a_host_with_a_changed_key_is_4_and_gets_no_data(
    transfers_to: Any, request: pytest.FixtureRequest, server: str, transport: str
) -> None:
    """Check that a host that may have been replaced gets one login and no data, and that hibali asks no question."""
    there = transfers_to("sftp" if transport == "sftp" else "ssh")
    there.make({b"a": b"1"})
    sshd = request.getfixturevalue(server)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", there.folder / "other"], check=True)
    other = " ".join((there.folder / "other.pub").read_text().split()[:2])
    hosts = {line.split()[0] for line in Path(sshd.folder, "known_hosts").read_text().splitlines()}
    known = there.folder / "known_hosts"
    known.write_text("".join(f"{host} {other}\n" for host in sorted(hosts)))
    config = there.folder / "ssh_config"
    # as careless as a user's own settings can be
    config.write_text(
        "StrictHostKeyChecking no\n"
        + sshd.config.read_text().replace(f"{sshd.folder}/known_hosts", str(known))
    )
    words = json.dumps(["ssh", "-F", str(config)])
    site(
        there,
        "moved",
        f'kind = "ssh"\n[sites.moved.ssh]\nhost = "far"\ncommand = {words}\ntransport = "{transport}"',
    )
    error = stopped(there, 4, "push", there.source, f"moved:{there.root}")
    assert (error["code"], error["about"]) == ("host-key-changed", "far")
    assert fingerprint(Path(sshd.folder, "host_key.pub")) in error["message"]
    assert f"line 1 of {known}" in error["message"]
    assert there.place.names("") == set()
    assert known.read_text().count(other) == len(hosts)  # the new key was not stored
    subprocess.run(shlex.split(error["hint"].split("`")[1]), check=True, capture_output=True)
    assert other not in known.read_text()


def test_a_wrong_key_to_a_bucket_is_4_and_is_not_printed(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"a": b"1"})
    there.hibali.env["AWS_SECRET_ACCESS_KEY"] = "planted-secret-planted-secret"
    answer = there.hibali("push", there.source, "there:data", "--json", exit=4)
    assert b"planted-secret" not in answer.out + answer.err
    for file in there.hibali.home.state.rglob("*"):
        assert not file.is_file() or b"planted-secret" not in file.read_bytes()


def test_a_bucket_that_does_not_exist_is_3(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"a": b"1"})
    site(
        there,
        "other",
        f'kind = "s3"\n[sites.other.s3]\nendpoint = "{there.place.endpoint}"\nbucket = "no-such-bucket"\nregion = "us-east-1"',  # type: ignore[attr-defined]
    )
    stopped(there, 3, "push", there.source, "other:data")


@pytest.mark.heavy
@pytest.mark.parametrize("words", [("--json",), ("-n",), ("-n", "--json")])
def test_a_closed_stdout_is_never_0(local_there: Transfers, words: tuple[str, ...]) -> None:
    there = local_there
    there.make({b"%d" % number: b"1" for number in range(20)})
    line = there.hibali.command("push", there.source, "there:data", *words)
    quoted = ["sh", "-c", 'exec "$@" >&-', "sh", *line]
    ended = subprocess.run(
        quoted, env=there.hibali.env, check=False, capture_output=True, cwd=there.folder, timeout=60
    )
    assert ended.returncode == 6
    assert b"Traceback" not in ended.stderr
    full = subprocess.run(
        ["sh", "-c", 'exec "$@" >/dev/full', "sh", *line],
        env=there.hibali.env,
        check=False,
        capture_output=True,
        cwd=there.folder,
        timeout=60,
    )
    assert full.returncode == 6
    assert b"Traceback" not in full.stderr


def test_without_a_ledger_nothing_starts(local_there: Transfers) -> None:
    there = local_there
    there.make({b"a": b"1"})
    operations = there.hibali.home.state / "operations"
    operations.write_text("no folder")
    stopped(there, 8, "push", there.source, "there:data")
    assert there.place.names("") == set()
    operations.unlink()
    operations.mkdir(mode=0o777)
    operations.chmod(0o777)
    stopped(there, 8, "push", there.source, "there:data")
    assert there.place.names("") == set()


def test_the_receipt_is_in_the_ledger(there: Transfers) -> None:
    there.make({b"a": b"1", b"b": b"2"})
    receipt = there.push().last
    journal = there.hibali.home.state / "operations" / f"{receipt['id']}.jsonl"
    records = [json.loads(line) for line in journal.read_bytes().splitlines()]
    assert records[-1] == receipt
    moved = {path_of(record) for record in records if record["kind"] == "moved"}
    assert moved == {b"a", b"b"}
    assert journal.stat().st_mode & 0o777 == 0o600


def test_a_stopped_push_has_its_receipt_too(folder_there: Transfers) -> None:
    there = folder_there
    stopped(there, 3, "push", there.source, "there:data")
    (journal,) = (there.hibali.home.state / "operations").iterdir()
    assert json.loads(journal.read_bytes().splitlines()[-1])["exit"] == 3


# Run as another account, because root may read everything.


def test_an_unreadable_file_is_reported_and_the_rest_arrives(
    local_there: Transfers, unprivileged: Any
) -> None:
    there = local_there
    there.make({b"readable": b"1", b"secret": b"2", b"sub/readable": b"3"})
    there.place.plant("data", {b"extra": b"4"})
    (there.source / "secret").chmod(0)
    answer = unprivileged("push", there.source, "there:data", "--delete", "--json", exit=6)
    assert failed(answer)[b"secret"] == "denied"
    assert counts(answer)["files_deleted"] == 0
    assert there.there() == {b"readable": b"1", b"sub/readable": b"3", b"extra": b"4"}


def test_an_unreadable_folder_prevents_all_deletions(local_there: Transfers, unprivileged: Any) -> None:
    there = local_there
    there.make({b"readable": b"1", b"closed/inside": b"2"})
    there.place.plant("data", {b"closed/inside": b"2", b"extra": b"4"})
    (there.source / "closed").chmod(0)
    answer = unprivileged("push", there.source, "there:data", "--delete", "--json", exit=6)
    assert b"closed" in failed(answer)
    assert there.there() == {b"readable": b"1", b"closed/inside": b"2", b"extra": b"4"}
    (there.source / "closed").chmod(0o700)


def test_a_target_without_write_permission_is_4_or_reported(
    local_there: Transfers, unprivileged: Any
) -> None:
    there = local_there
    there.make({b"a": b"1"})
    there.place.plant("data", {b"b": b"2"})
    there.root.chmod(0o500)
    answer = unprivileged("push", there.source, "there:data", "--json", exit=4)
    assert answer.last["code"] == "denied"
    assert there.there() == {b"b": b"2"}
    there.root.chmod(0o700)


def test_a_source_that_changes_while_it_is_read_is_reported(local_there: Transfers) -> None:
    """Check that a large file that grows all the time never has wrong content under its final name."""
    there = local_there
    there.make({b"growing": File(b"x" * (48 << 20)), b"still": b"1"})
    process = there.hibali.start("push", there.source, "there:data", "--json")
    with (there.source / "growing").open("ab") as stream:
        while process.poll() is None:
            stream.write(b"y" * 4096)
            stream.flush()
    lines = [json.loads(line) for line in (there.hibali.home.folder / "0.out").read_bytes().splitlines()]
    assert process.returncode == 6
    assert {path_of(line): line["code"] for line in lines if line["kind"] == "failed"} == {
        b"growing": "source-changed"
    }
    assert there.there() == {b"still": b"1"}
    there.check_no_own_files()


@pytest.mark.parametrize(
    ("options", "code"), [("size=1m,nr_inodes=1000", "no-space"), ("size=16m,nr_inodes=20", "no-inodes")]
)
def test_a_target_without_space_is_refused_before_the_transfer(
    folder_there: Transfers, options: str, code: str
) -> None:
    there = folder_there
    there.make({b"%03d" % number: b"x" * 60_000 for number in range(30)})
    with small_filesystem(there.root, options):
        there.place.plant("data", {b"000": b"kept"})
        answer = there.push(exit=8)
        assert answer.last["code"] == code
        assert there.there() == {b"000": b"kept"}
        assert counts(there.push("--include", "00*"))["files_moved"] == 10
