"""Test shares with people: POSIX access control lists and bucket policies, each proven as the other person."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3

import hibali as api
from tests.services.object_store import OTHER_ACCOUNT, ObjectStore
from tests.support.backends import (
    CbrainBackend,
    DavBackend,
    FolderBackend,
    GlobusBackend,
    add_site,
    make_backend,
)
from tests.support.private_cron import PrivateCron
from tests.support.trees import make_tree
from tests.support.waiting import wait_for
from transfers.agent import acl
from transfers.agent.acl import NO_ID

if os.geteuid() != 0:
    pytest.skip("this needs root, to log in as another account", allow_module_level=True)

OTHER = 65534  # `nobody`


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that other accounts can reach: those of pytest are private."""
    folder = Path(tempfile.mkdtemp(prefix="hibali-shares-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def brain(open_folder: Path) -> Path:
    """Return a private folder with files of several modes."""
    root = open_folder / "brain"
    (root / "sub").mkdir(parents=True)
    for name, mode in {"a": 0o600, "sub/b": 0o640, "sub/tool": 0o700}.items():
        (root / name).write_text(name)
        (root / name).chmod(mode)
    (root / "link").symlink_to("/etc/shadow")
    root.chmod(0o700)
    return root


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.heavy)])
def here(
    request: pytest.FixtureRequest, hibali: Any, other_account_sftp_server: Any, open_folder: Path
) -> str:
    """Return the name of a site with the folder, and configure `other`, the same files with the login of `nobody`."""
    server = request.getfixturevalue("ssh_server") if request.param == "ssh" else None
    there = FolderBackend(request.param, open_folder, server)
    add_site(hibali.home.config, "mine", there)
    add_site(hibali.home.config, "other", FolderBackend("sftp", open_folder, other_account_sftp_server))
    return "mine"


def read_as_other(path: Path) -> str | None:
    """Return what the other account reads in a file; None if it may not."""
    done = subprocess.run(
        ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "cat", path],
        capture_output=True,
        check=False,
    )
    return done.stdout.decode() if done.returncode == 0 else None


def write_as_other(path: Path) -> bool:
    """Return whether the other account can create or change a file."""
    words = [
        "setpriv",
        f"--reuid={OTHER}",
        f"--regid={OTHER}",
        "--clear-groups",
        "sh",
        "-c",
        'echo x >> "$1"',
        "sh",
    ]
    return subprocess.run([*words, path], capture_output=True, check=False).returncode == 0


def lists_of(root: Path) -> dict[str, bytes | None]:
    """Return both access control lists of all names below a folder, as the kernel has them."""
    found: dict[str, bytes | None] = {}
    for path in [root, *root.rglob("*")]:
        for attribute in ("system.posix_acl_access", "system.posix_acl_default"):
            try:
                value = os.getxattr(path, attribute, follow_symlinks=False)
            except OSError:
                value = None
            found[f"{path.relative_to(root)} {attribute}"] = value
        found[f"{path.relative_to(root)} mode"] = b"%o" % path.lstat().st_mode
    return found


def test_a_share_is_planned_given_proven_and_removed(hibali: Any, here: str, brain: Path) -> None:
    place, before = f"{here}:{brain}", lists_of(brain)
    planned = hibali("share", "add", place, "--with", "nobody", "--dry-run", "--json", exit=0).last
    assert (planned["state"], planned["files"], planned["changed"], planned["blocked"]) == (
        "planned",
        3,
        5,
        [],
    )
    assert lists_of(brain) == before
    done = hibali("share", "add", place, "--with", "nobody", "--as", "other", "--json", exit=0).last
    assert (done["state"], done["proven"], done["who"]) == ("added", True, "user:nobody")
    assert [read_as_other(brain / name) for name in ("a", "sub/b", "sub/tool")] == ["a", "sub/b", "sub/tool"]
    assert not write_as_other(brain / "a")
    assert not write_as_other(brain / "new")
    assert hibali("share", "add", place, "--with", "nobody", "--json", exit=0).last["changed"] == 0
    found = hibali("share", "list", place, "--json", exit=0).lines
    assert ("user:nobody", "read") in {(line.get("who"), line.get("permission")) for line in found}
    gone = hibali("share", "rm", place, "--with", "nobody", "--as", "other", "--json", exit=0).last
    assert (gone["state"], gone["proven"], gone["changed"]) == ("removed", True, 5)
    assert read_as_other(brain / "a") is None
    assert lists_of(brain) == before


def test_new_and_replaced_files_inherit_a_share(hibali: Any, here: str, brain: Path, tmp_path: Path) -> None:
    hibali("share", "add", f"{here}:{brain}", "--with", "nobody", exit=0)
    source = tmp_path / "source"
    (source / "sub" / "deep").mkdir(parents=True)
    for name in ("a", "sub/b", "sub/deep/new", "large"):
        (source / name).write_text(f"pushed {name}" * (1_000_000 if name == "large" else 1))
        (source / name).chmod(0o600)
    hibali("push", source, f"{here}:{brain}", exit=0)
    for name in ("a", "sub/b", "sub/deep/new", "large"):
        assert read_as_other(brain / name) == (source / name).read_text(), name
    (source / "a").write_text("again")
    hibali("push", "--modes", "keep", source, f"{here}:{brain}", exit=0)
    assert read_as_other(brain / "a") is None, "the mode 0600 is private"
    assert read_as_other(brain / "large") is None
    (source / "a").chmod(0o640)
    (source / "sub" / "another").write_text("another")
    (source / "sub" / "another").chmod(0o640)
    hibali("push", "--modes", "keep", source, f"{here}:{brain}", exit=0)
    assert read_as_other(brain / "sub" / "another") == "another"
    assert read_as_other(brain / "a") is None, "its list had become ineffective"
    hibali("share", "add", f"{here}:{brain}", "--with", "nobody", exit=0)
    assert read_as_other(brain / "a") == "again"
    hibali("share", "rm", f"{here}:{brain}", "--with", "nobody", exit=0)
    assert read_as_other(brain / "a") is None
    assert (brain / "a").stat().st_mode & 0o777 == 0o640


def test_write_access_and_replacing_it_by_read_access(hibali: Any, here: str, brain: Path) -> None:
    place = f"{here}:{brain}"
    hibali("share", "add", place, "--with", f"user:{OTHER}", "--write", exit=0)
    assert write_as_other(brain / "a")
    assert write_as_other(brain / "sub" / "new")
    (brain / "sub" / "new").unlink()
    hibali("share", "add", place, "--with", f"user:{OTHER}", exit=0)
    assert not write_as_other(brain / "a")
    assert read_as_other(brain / "a") is not None


def test_nobody_else_gains_and_what_others_gave_stays(hibali: Any, here: str, brain: Path) -> None:
    """Check that an entry which the mask had made ineffective stays so, and that other entries stay."""
    entries = {
        (0x01, NO_ID): 6,
        (0x02, 4321): 7,
        (0x04, NO_ID): 7,
        (0x08, 4322): 4,
        (0x10, NO_ID): 4,
        (0x20, NO_ID): 0,
    }
    os.setxattr(brain / "a", acl.ACCESS.decode(), acl.pack(entries))
    person = acl.Person((0x02, 4321), 4321, set())
    hibali("share", "add", f"{here}:{brain}", "--with", "nobody", "--write", exit=0)
    now = acl.unpack(os.getxattr(brain / "a", acl.ACCESS.decode()))
    assert now[0x10, NO_ID] & 2
    assert acl.may(now, (0, 0), person, acl.READ)
    assert not acl.may(now, (0, 0), person, acl.WRITE)
    assert not now[0x04, NO_ID] & 3
    hibali("share", "rm", f"{here}:{brain}", "--with", "nobody", exit=0)
    assert (0x08, 4322) in acl.unpack(os.getxattr(brain / "a", acl.ACCESS.decode()))


@pytest.mark.heavy
def test_a_share_ends_by_a_schedule(hibali: Any, here: str, brain: Path, tmp_path: Path) -> None:
    place = f"{here}:{brain}"
    answer = hibali("share", "add", place, "--with", "nobody", "--until", "1s", exit=0)
    assert b"share rm --ended" in answer.err
    hibali("share", "add", f"{place}/sub", "--with", "nobody", "--until", "1d", exit=0)
    wait_for(
        lambda: (
            {"ended", "added"}
            == {line["state"] for line in hibali("share", "list", "--json", exit=0).lines if "state" in line}
        )
    )
    ended = [
        line for line in hibali("share", "rm", "--ended", "--json", exit=0).lines if line["kind"] == "share"
    ]
    assert [(line["place"], line["state"]) for line in ended] == [(place, "removed")]
    assert read_as_other(brain / "a") is None
    left = [
        line["place"] for line in hibali("share", "list", "--json", exit=0).lines if line["kind"] == "shared"
    ]
    assert left == [f"{place}/sub"]
    history = [line["operation"] for line in hibali("history", "--json", exit=0).lines if "operation" in line]
    assert history.count("share") == 2
    assert history.count("unshare") == 1
    cron = PrivateCron(tmp_path / "cron")
    words = hibali.command("schedule", "add", "shares", "--every", "1h", "--no-check", "--")
    subprocess.run([*cron.words, *words, "share", "rm", "--ended"], env=hibali.env, check=True)
    assert b" schedule run shares --due >>" in (cron.content() or b"")


def test_a_share_of_what_is_gone_ends_without_an_error(hibali: Any, here: str, brain: Path) -> None:
    hibali("share", "add", f"{here}:{brain}", "--with", "nobody", "--until", "1s", exit=0)
    shutil.rmtree(brain)
    wait_for(lambda: hibali("share", "rm", "--ended", "--json", exit=0).lines)
    assert [line["kind"] for line in hibali("share", "list", "--json", exit=0).lines] == ["end"]


def test_a_recorded_place_with_two_colons_ends_as_well(hibali: Any, open_folder: Path) -> None:
    """Check a record of an earlier version: SITE::PATH is refused only where a person types it."""
    (open_folder / ":x").write_text("x")
    hibali("sites", "add", "mine", "--local", open_folder, "--no-check", exit=0)
    hibali("share", "add", "mine:./:x", "--with", "nobody", "--until", "1s", exit=0)
    [journal] = hibali.home.state.rglob("shares/*.jsonl")
    who = json.loads(journal.read_text().splitlines()[0])["who"]
    name = hashlib.sha256(f"{who}\0mine::x".encode("ascii")).hexdigest()[:32]
    journal.write_text(journal.read_text().replace("mine:./:x", "mine::x"))
    journal.rename(journal.with_name(f"{name}.jsonl"))
    wait_for(lambda: hibali("share", "rm", "--ended", "--json", exit=0).lines)
    assert [line["kind"] for line in hibali("share", "list", "--json", exit=0).lines] == ["end"]
    assert hibali("share", "list", "mine::x", "--json", exit=2).last["code"] == "bad-location"


def test_what_keeps_a_share_from_working_is_said_and_not_proven(hibali: Any, here: str, brain: Path) -> None:
    """Check that folders above which the other cannot enter are named in the plan, and that proof then fails."""
    (brain / "sub").chmod(0o700)
    place = f"{here}:{brain}/sub/b"
    planned = hibali("share", "add", place, "--with", "nobody", "--dry-run", "--json", exit=0).last
    assert planned["blocked"] == [str(brain), str(brain / "sub")]
    answer = hibali("share", "add", place, "--with", "nobody", "--as", "other", exit=11)
    assert b"not proven" in answer.err
    assert b"cannot enter" in answer.err


@pytest.mark.heavy
def test_a_removal_that_has_no_effect_is_not_proven(hibali: Any, here: str, brain: Path) -> None:
    brain.chmod(0o755)
    (brain / "a").chmod(0o644)
    hibali("share", "add", f"{here}:{brain}/a", "--with", "nobody", "--as", "other", exit=0)
    answer = hibali("share", "rm", f"{here}:{brain}/a", "--with", "nobody", "--as", "other", exit=11)
    assert b"can still read" in answer.err


def test_symlinks_are_not_followed_and_bad_names_are_refused(hibali: Any, here: str, brain: Path) -> None:
    shadow = Path("/etc/shadow").stat()
    hibali("share", "add", f"{here}:{brain}", "--with", "nobody", exit=0)
    assert Path("/etc/shadow").stat().st_ctime_ns == shadow.st_ctime_ns
    assert hibali("share", "add", f"{here}:{brain}/link", "--with", "nobody", "--json", exit=8).last["code"]
    assert (
        hibali("share", "add", f"{here}:{brain}", "--with", "no such", "--json", exit=2).last["code"]
        == "not-a-person"
    )
    refused = hibali("share", "add", f"{here}:{brain}", "--with", "group:none-such", "--json", exit=3).last
    assert refused["code"] == "no-such-account"
    assert (
        hibali("share", "add", f"{here}:{brain}/none", "--with", "nobody", "--json", exit=3).last["code"]
        == "no-such-place"
    )


@pytest.fixture
def bucket(hibali: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Return a bucket as the site `bucket`, and configure `other`, the same bucket with the keys of another account."""
    place = make_backend("s3", tmp_path, request.getfixturevalue)
    keys = tmp_path / "keys"
    store = place.store
    keys.write_text(
        json.dumps(
            {"Version": 1, "AccessKeyId": store.other_access_key, "SecretAccessKey": store.other_secret_key}
        )
    )
    add_site(hibali.home.config, "bucket", place)
    add_site(hibali.home.config, "other", place, f'credentials_command = ["cat", "{keys}"]\n')
    hibali.env.update(place.env)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        (source / name).write_text(name)
    for prefix in ("t", "tt", "private"):
        hibali("push", source, f"bucket:{prefix}", exit=0)
    return place


def policy_of(bucket: Any) -> Any:
    """Return the statements of the bucket's policy, read without hibali."""
    client = bucket.bucket.client
    try:
        return json.loads(client.get_bucket_policy(Bucket=bucket.bucket.name)["Policy"])["Statement"]
    except client.exceptions.ClientError:
        return []


def put_policy(bucket: Any, statements: list[Any]) -> None:
    text = json.dumps({"Version": "2012-10-17", "Statement": statements})
    bucket.bucket.client.put_bucket_policy(Bucket=bucket.bucket.name, Policy=text)


def foreign(bucket: Any) -> dict[str, Any]:
    """Return a statement of somebody else."""
    return {
        "Sid": "Foreign",
        "Effect": "Allow",
        "Principal": {"AWS": ["arn:aws:iam::000000000000:user/carol"]},
        "Action": "s3:GetObject",  # SeaweedFS rewrites lists of one
        "Resource": f"arn:aws:s3:::{bucket.bucket.name}/private/*",
    }


def test_a_prefix_is_shared_proven_and_removed_and_foreign_statements_stay(hibali: Any, bucket: Any) -> None:
    put_policy(bucket, [foreign(bucket)])
    words = ("bucket:t", "--with", OTHER_ACCOUNT, "--json")
    planned = hibali("share", "add", *words, "--dry-run", exit=0).last
    assert (planned["files"], planned["bytes"], planned["changed"]) == (2, 6, 1)
    assert policy_of(bucket) == [foreign(bucket)]
    assert hibali("share", "add", *words, "--as", "other", exit=0).last["proven"] is True
    assert foreign(bucket) in policy_of(bucket)
    assert hibali("cat", "other:t/sub/b", exit=0).out == b"sub/b"
    assert hibali("ls", "-R", "other:t", exit=0).out
    hibali("cat", "other:tt/a", exit=4)
    hibali("cat", "other:private/a", exit=4)
    people = hibali("share", "list", "bucket:t", "--json", exit=0).lines
    assert [(line["who"], line["ours"]) for line in people if line["kind"] == "access"] == [
        (OTHER_ACCOUNT, True)
    ]
    others = hibali("share", "list", "bucket:private", "--json", exit=0).lines
    assert [line["ours"] for line in others if line["kind"] == "access"] == [False]
    assert hibali("share", "rm", *words, "--as", "other", exit=0).last["proven"] is True
    assert policy_of(bucket) == [foreign(bucket)]
    hibali("cat", "other:t/a", exit=4)


def test_statements_are_removed_although_the_objects_are_gone(hibali: Any, bucket: Any) -> None:
    hibali("share", "add", "bucket:t", "--with", OTHER_ACCOUNT, exit=0)
    hibali("rm", "-r", "bucket:t", "--yes", "--max-delete", "10", exit=0)
    hibali("share", "rm", "bucket:t", "--with", OTHER_ACCOUNT, exit=0)
    assert policy_of(bucket) == []


@pytest.mark.heavy
def test_a_name_that_the_server_takes_for_nobody_is_not_proven(hibali: Any, bucket: Any) -> None:
    """Check what SeaweedFS 4.48 does: it accepts a short name, which is in no effect."""
    assert policy_of(bucket) == []
    short = OTHER_ACCOUNT.rpartition("/")[2]
    answer = hibali("share", "add", "bucket:t", "--with", short, "--as", "other", exit=11)
    assert b"not proven" in answer.err
    assert policy_of(bucket)
    shared = hibali("share", "list", "--json", exit=0).lines
    assert [line["proven"] for line in shared if line["kind"] == "shared"] == [False]
    hibali("share", "rm", "bucket:t", "--with", short, exit=0)
    assert policy_of(bucket) == []


def test_a_file_and_write_access_in_a_bucket(hibali: Any, bucket: Any) -> None:
    hibali("share", "add", "bucket:t/a", "--with", OTHER_ACCOUNT, "--as", "other", exit=0)
    hibali("cat", "other:t/sub/b", exit=4)
    hibali("share", "rm", "bucket:t/a", "--with", OTHER_ACCOUNT, "--as", "other", exit=0)
    hibali("share", "add", "bucket:t", "--with", OTHER_ACCOUNT, "--write", "--as", "other", exit=0)
    store = bucket.store
    keys = {"access_key": store.other_access_key, "secret_key": store.other_secret_key}
    client = ObjectStore(store.endpoint, **keys).client()
    client.put_object(Bucket=bucket.bucket.name, Key="t/new", Body=b"by the other")
    with pytest.raises(client.exceptions.ClientError):
        client.put_object(Bucket=bucket.bucket.name, Key="private/new", Body=b"by the other")
    assert hibali("cat", "bucket:t/new", exit=0).out == b"by the other"


@pytest.mark.heavy
def test_the_server_ends_a_share_itself(hibali: Any, bucket: Any) -> None:
    """Check the condition on the time, which SeaweedFS enforces; the statements are removed later."""
    hibali("share", "add", "bucket:t", "--with", OTHER_ACCOUNT, "--until", "6s", "--as", "other", exit=0)
    assert hibali("cat", "other:t/a", exit=0).out == b"a"
    wait_for(lambda: hibali("cat", "other:t/a").exit == 4)
    assert len(policy_of(bucket)) == 2
    hibali("share", "rm", "--ended", exit=0)
    assert policy_of(bucket) == []


@pytest.mark.heavy
def test_a_concurrent_change_of_a_policy_is_noticed(hibali: Any, bucket: Any) -> None:
    """Check that hibali does not report a share whose statements somebody else's edit removed at the same moment."""
    stop = threading.Event()

    def edit() -> None:
        while not stop.is_set():
            put_policy(bucket, [foreign(bucket)])

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        codes: list[str | None] = []
        while "policy-changed" not in codes and len(codes) < 20:  # the edit may always come before or after
            codes.append(
                hibali("share", "add", "bucket:t", "--with", OTHER_ACCOUNT, "--json").last.get("code")
            )
    finally:
        stop.set()
        editor.join()
    assert {*codes} - {None} == {"policy-changed"}
    assert foreign(bucket) in policy_of(bucket)
    hibali("share", "add", "bucket:t", "--with", OTHER_ACCOUNT, "--as", "other", exit=0)
    assert foreign(bucket) in policy_of(bucket)


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["s3-rclone", "s3-swift"])
def test_object_stores_without_policies_are_named(
    hibali: Any, tmp_path: Path, request: pytest.FixtureRequest, word: str
) -> None:
    place = make_backend(word, tmp_path, request.getfixturevalue)
    add_site(hibali.home.config, "bucket", place)
    hibali.env.update(place.env)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("1")
    hibali("push", tmp_path / "source", "bucket:t", exit=0)
    for words in (("add", "bucket:t", "--with", "anna"), ("list", "bucket:t")):
        answer = hibali("share", *words, "--json")
        assert (answer.exit, answer.last["code"]) == (8, "no-policies"), str(answer)


@dataclass(frozen=True)
class SwiftBucket:
    """A bucket of Swift: its place, the URL of its account and tokens of its owner and of another user."""

    place: Any
    url: str
    tokens: dict[str, str]

    def send(
        self, who: str, method: str, name: str, headers: dict[str, str] | None = None
    ) -> urllib3.BaseHTTPResponse:
        """Send a request with Swift's own API, without hibali."""
        sent = {"X-Auth-Token": self.tokens[who]} if who else {}
        return urllib3.request(method, f"{self.url}/{name}", headers={**sent, **(headers or {})})

    def readers(self, more: str = "") -> str:
        return str(
            self.send("owner", "HEAD", self.place.bucket.name + more).headers.get("X-Container-Read", "")
        )


@pytest.fixture
def swift_bucket(hibali: Any, tmp_path: Path, request: pytest.FixtureRequest) -> SwiftBucket:
    """Return a bucket as the site `bucket`; `other` has a token of another user, and `nobody` none."""
    place = make_backend("s3-swift", tmp_path, request.getfixturevalue)
    store, tokens, url = place.store, {}, ""
    logins = {
        "owner": (store.access_key, store.secret_key),
        "other": (store.other_access_key, store.other_secret_key),
    }
    for who, (user, key) in logins.items():
        answer = urllib3.request(
            "GET", f"{store.endpoint}/auth/v1.0", headers={"X-Auth-User": user, "X-Auth-Key": key}
        )
        tokens[who], url = answer.headers["X-Auth-Token"], url or answer.headers["X-Storage-Url"]
        (tmp_path / who).write_text(f"{tokens[who]}\n")
    for name, who in (("bucket", "owner"), ("other", "other"), ("nobody", "")):
        command = f'swift_token_command = ["cat", "{tmp_path}/{who}"]\n' if who else ""
        add_site(hibali.home.config, name, place, f'swift_url = "{url}"\n{command}')
    hibali.env.update(place.env)
    named = "A b%41?\u00fc".encode()  # the first: it is read as the proof
    make_tree(tmp_path / "source", {named: b"0", b"a": b"1", b"sub/b": b"22", b"large": b"x" * (20 << 20)})
    hibali("push", tmp_path / "source", "bucket:", exit=0)
    return SwiftBucket(place, url, tokens)


@pytest.mark.heavy
def test_a_bucket_of_swift_is_shared_proven_and_removed(hibali: Any, swift_bucket: SwiftBucket) -> None:
    """Check also that parts of large objects are shared, and that elements of others stay."""
    name, bob = swift_bucket.place.bucket.name, swift_bucket.place.store.other_access_key
    swift_bucket.send("owner", "POST", name, {"X-Container-Read": "study:carol"})
    words = ("bucket:", "--with", bob, "--json")
    planned = hibali("share", "add", *words, "--dry-run", exit=0).last
    assert (planned["files"], planned["bytes"], planned["changed"]) == (4, 4 + (20 << 20), 1)
    assert swift_bucket.readers() == "study:carol"
    assert swift_bucket.send("other", "GET", f"{name}/a").status == 403
    assert hibali("share", "add", *words, "--as", "other", exit=0).last["proven"] is True
    assert hibali("share", "add", *words, exit=0).last["changed"] == 0
    assert swift_bucket.send("other", "GET", f"{name}/sub/b").data == b"22"
    assert len(swift_bucket.send("other", "GET", f"{name}/large").data) == 20 << 20
    assert swift_bucket.send("other", "PUT", f"{name}/new").status == 403
    people = {
        (line.get("who"), line.get("permission"))
        for line in hibali("share", "list", "bucket:", "--json", exit=0).lines
    }
    assert people >= {(bob, "read"), ("study:carol", "read")}
    hibali("share", "add", *words, "--write", exit=0)
    assert swift_bucket.send("other", "PUT", f"{name}/new").status == 201
    assert hibali("share", "rm", *words, "--as", "other", exit=0).last["proven"] is True
    assert (swift_bucket.readers(), swift_bucket.readers("+segments")) == ("study:carol", "")
    assert swift_bucket.send("other", "PUT", f"{name}/new").status == 403


@pytest.mark.heavy
def test_a_bucket_of_swift_is_shared_with_everyone(hibali: Any, swift_bucket: SwiftBucket) -> None:
    name = swift_bucket.place.bucket.name
    hibali("share", "add", "bucket:", "--with", "everyone", "--until", "1s", "--as", "nobody", exit=0)
    assert swift_bucket.send("", "GET", f"{name}/a").data == b"1"
    wait_for(lambda: hibali("share", "rm", "--ended", "--json", exit=0).lines)
    assert swift_bucket.send("", "GET", f"{name}/a").status == 401
    unknown = hibali(
        "share", "add", "bucket:", "--with", "guest:nobody-has-this-name", "--as", "other", exit=11
    )
    assert b"not proven" in unknown.err
    for place, who, more, code, left in (
        ("bucket:sub", "guest:bob", (), "not-shared", 8),
        ("bucket:", "bob", (), "not-a-person", 2),
        ("bucket:", ".r:*", (), "not-a-person", 2),
        ("bucket:", "everyone", ("--write",), "not-shared", 8),
    ):
        answer = hibali("share", "add", place, "--with", who, *more, "--json")
        assert (answer.exit, answer.last["code"]) == (left, code), str(answer)


@pytest.fixture
def guest(hibali: Any, tmp_path: Path, globus: Any) -> Any:
    """Return a guest collection as the site `guest`, with two files in a folder, and a mapped one as `mapped`."""
    for name, kind in (("guest", "GCSv5_guest_collection"), ("mapped", "GCSv5_mapped_collection")):
        place = GlobusBackend("globus", tmp_path / name, globus, entity_type=kind)
        make_tree(tmp_path / name / "t", {b"a": b"1", b"sub/b": b"22"})
        add_site(hibali.home.config, name, place)
        hibali.env.update(place.env)
    return globus


def rules_of(world: Any) -> list[tuple[str, str, str, str, str | None]]:
    """Return the rules of all guest collections, as the double has them."""
    found = [rule for rules in world.request("GET", "/_test/rules").values() for rule in rules]
    keys = ("principal_type", "principal", "path", "permissions", "expiration_date")
    return sorted(tuple(rule[key] for key in keys) for rule in found)


def test_a_folder_of_a_guest_collection_is_shared(hibali: Any, guest: Any) -> None:
    """Check the rules at the double, which does not enforce them: access as the other person cannot be proven here."""
    anna, group = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
    words = ("guest:t", "--with", anna, "--json")
    planned = hibali("share", "add", *words, "--dry-run", exit=0).last
    assert (planned["files"], planned["bytes"], planned["changed"]) == (2, 3, 1)
    assert rules_of(guest) == []
    hibali("share", "add", *words, exit=0)
    assert hibali("share", "add", *words, exit=0).last["changed"] == 0
    assert rules_of(guest) == [("identity", anna, "/t/", "r", None)]
    hibali(
        "share",
        "add",
        "guest:t",
        "--with",
        f"group:{group}",
        "--write",
        "--until",
        "2099-01-01T00:00:00Z",
        exit=0,
    )
    lost = guest.fault("lost_answer", path="*", times=1)
    hibali("share", "add", "guest:t/sub", "--with", "all-users", exit=0)
    lost.clear()
    people = {
        (line.get("who"), line.get("permission"))
        for line in hibali("share", "list", "guest:t", "--json", exit=0).lines
    }
    assert people >= {(anna, "read"), (f"group:{group}", "write"), ("all-users", "read")}
    hibali("share", "add", *words, "--write", exit=0)
    hibali("share", "rm", "guest:t", "--with", f"group:{group}", exit=0)
    hibali("share", "rm", "guest:t/sub", "--with", "all-users", exit=0)
    assert rules_of(guest) == [("identity", anna, "/t/", "rw", None)]
    assert hibali("share", "rm", *words, exit=0).last["changed"] == 1
    assert hibali("share", "rm", *words, exit=0).last["changed"] == 0
    assert rules_of(guest) == []


@pytest.mark.usefixtures("guest")
def test_what_globus_cannot_share_is_refused(hibali: Any) -> None:
    anna = str(uuid.UUID(int=1))
    for place, who, code, left in (
        ("mapped:t", anna, "no-shares", 8),
        ("guest:t/a", anna, "not-shared", 8),
        ("guest:t", "anna@example.org", "not-a-person", 2),
        ("guest:none", anna, "no-such-place", 3),
    ):
        answer = hibali("share", "add", place, "--with", who, "--json")
        assert (answer.exit, answer.last["code"]) == (left, code), str(answer)


@pytest.fixture
def portal(hibali: Any, cbrain: Any) -> Any:
    """Return a CBRAIN portal as the site `portal` with three files, and as `anna`, who is in the project `lab`."""
    place = CbrainBackend("cbrain", cbrain)
    me, anna = cbrain.users[0], cbrain.add_user("anna")
    cbrain.add_group("lab", me, anna)
    cbrain.add_group("other", me)
    place.plant("", {b"a.txt": b"1", b"b.txt": b"22"})
    for name, login in (("portal", "me"), ("anna", "anna")):
        add_site(hibali.home.config, name, place)
        config = hibali.home.config.read_text()
        head, _, last = config.rpartition('login = "me"')
        hibali.home.config.write_text(f'{head}login = "{login}"{last}')
    hibali.env.update(place.env)
    return cbrain


@pytest.mark.heavy
def test_userfiles_of_a_portal_are_shared_with_a_project(hibali: Any, portal: Any) -> None:
    words = ("portal:@lab/a.txt", "--with", "project:lab", "--json")
    hibali("cat", "anna:@lab/a.txt", exit=3)
    planned = hibali("share", "add", *words, "--dry-run", exit=0).last
    assert (planned["files"], planned["bytes"], planned["changed"]) == (1, 1, 1)
    done = hibali("share", "add", *words, "--write", "--as", "anna", exit=0).last
    assert (done["who"], done["proven"]) == ("project:lab", True)
    people = [
        line for line in hibali("share", "list", words[0], "--json", exit=0).lines if line["kind"] == "access"
    ]
    assert [(line["who"], line["permission"]) for line in people] == [("project:lab", "write")]
    refused = hibali("share", "add", words[0], "--with", "other", "--json", exit=6)
    assert b"another project" in refused.err
    assert hibali("share", "rm", *words, "--as", "anna", exit=0).last["proven"] is True
    hibali("cat", "anna:@lab/a.txt", exit=3)
    assert {each.group_id for each in portal.userfiles.values()} == {portal.users[0].group_id}


@pytest.mark.usefixtures("portal")
def test_what_a_portal_cannot_share_is_refused(hibali: Any) -> None:
    for place, who, code, left in (
        ("portal:@lab/a.txt", "no such", "no-such-project", 2),
        ("portal:@lab/", "lab", "not-shared", 8),
        ("portal:", "lab", "not-shared", 8),
        ("portal:@lab/none", "lab", "no-such-place", 3),
    ):
        answer = hibali("share", "add", place, "--with", who, "--json")
        assert (answer.exit, answer.last["code"]) == (left, code), str(answer)


def test_other_stores_say_that_they_cannot_be_shared(hibali: Any, tmp_path: Path, webdav_server: Any) -> None:
    place = DavBackend("webdav", webdav_server)
    add_site(hibali.home.config, "dav", place)
    hibali.env.update(place.env)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("1")
    hibali("push", tmp_path / "source", "dav:t", exit=0)
    assert hibali("share", "add", "dav:t", "--with", "anna", "--json", exit=8).last["code"] == "no-shares"


@pytest.mark.heavy
def test_the_python_api_shares_and_raises_what_is_not_proven(
    hibali: Any, here: str, brain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in hibali.env.items():
        monkeypatch.setenv(name, value)
    place, month = f"{here}:{brain}", timedelta(days=30)
    assert api.shares.plan(place, "nobody").reach.files == 3
    done = api.shares.add(place, "nobody", until=month, prove_as="other")
    assert (done.grant.who, done.proven, done.reach.changed) == ("user:nobody", True, 5)
    assert "user:nobody" in {each.grant.who for each in api.shares.people(place)}
    (brain / "a").chmod(0o604)
    with pytest.raises(api.NotVerifiedError, match="can still read"):
        api.shares.remove(f"{place}/a", "nobody", prove_as="other")
    (brain / "a").chmod(0o600)
    assert api.shares.remove(place, "nobody", prove_as="other").proven is True
    assert api.shares.every() == []
    (brain / "sub").chmod(0o700)
    with pytest.raises(api.NotVerifiedError, match="no effect"):
        api.shares.add(f"{place}/sub/b", "nobody", prove_as="other")
    for problem in ({"until": -month}, {"permission": "execute"}):
        with pytest.raises(api.UsageError):
            api.shares.add(place, "nobody", **problem)
    with pytest.raises(api.RefusedError, match="cannot be shared by a link"):
        api.shares.link(f"{place}/a")
