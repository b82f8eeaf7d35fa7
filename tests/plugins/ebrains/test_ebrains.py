"""Test buckets and datasets of EBRAINS: tokens that expire, kills, consent, faults, and no secret anywhere."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.ebrains.requests import CONNECTIONS
from tests.services.ebrains import CLIENT, Ebrains
from tests.services.fixtures import Bucket, Buckets
from tests.support.folders import removed_folders
from tests.support.secret_search import check_secrets_absent, watch_process_arguments
from tests.support.trees import make_tree, read_tree

MIB = 1 << 20
IN_FLIGHT = 64 * MIB  # the most that a kill may cost
OVERHEAD = 1.03
LIMITS = '[sites.there.limits]\nreconnect = "0s"\n'


class Place:
    """The site `there`, which is a bucket or a dataset of the double."""

    def __init__(self, hibali: Any, double: Ebrains, bucket: Bucket) -> None:
        self.hibali = hibali
        self.double = double
        self.bucket = bucket
        hibali.env["TEST_EBRAINS_REFRESH"] = double.refresh_token

    def add(self, text: str = "") -> None:
        """Write config.toml; without a text the bucket is the site, with a login by a refresh token."""
        login = f'client_id = "{CLIENT}"\nrefresh_variable = "TEST_EBRAINS_REFRESH"\ntoken_url = "{self.double.token_url}"'
        text = text or f'bucket = "{self.bucket.name}"\n{login}'
        table = f'[sites.there]\nkind = "ebrains"\n{LIMITS}[sites.there.ebrains]\nurl = "{self.double.url}"\n{text}\n'
        self.hibali.home.config.write_text(f"version = 1\n{table}")
        self.hibali.home.config.chmod(0o600)

    def command(self) -> str:
        """Return a token_command, which counts its calls in the file `calls`."""
        words = ["sh", "-c", f"echo >> {self.calls}; cat {self.double.token_file}"]
        return f"token_command = {json.dumps(words)}"

    @property
    def calls(self) -> Path:
        return self.double.token_file.with_name("calls")

    def objects(self) -> dict[bytes, bytes]:
        """Return the objects below `data` that are not hibali's own."""
        found = (key.partition("/") for key in self.bucket.keys())  # noqa: SIM118 - it is no dict
        names = [name for folder, _, name in found if folder == "data" and ".hibali" not in name]
        return {name.encode(): self.bucket.get(f"data/{name}") for name in names}

    def uploads(self) -> dict[str, int]:
        """Return how often each object that is not hibali's own was uploaded."""
        return {key: times for key, times in self.double.uploaded.items() if ".hibali" not in key}

    def kill_when(self, reached: Callable[[], bool], *words: Any) -> int:
        """Run a command, kill it once the condition holds, and return its exit code."""
        process = self.hibali.start(*words, "--json")
        while process.poll() is None and not reached():
            time.sleep(0.002)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return int(process.wait(60))


@pytest.fixture
def place(hibali: Any, ebrains: Ebrains, object_store: Buckets) -> Place:
    bucket = object_store.bucket()
    ebrains.add_bucket(bucket.name)
    made = Place(hibali, ebrains, bucket)
    made.add()
    return made


def files_in(folder: Path) -> dict[bytes, bytes]:
    """Return the files that have their final names."""
    found = read_tree(folder) if folder.exists() else {}
    return {name: leaf for name, leaf in found.items() if isinstance(leaf, bytes) and b".hibali" not in name}


TREE = {b"a/b": b"1", b"a/empty": b"", "ä ö/%41".encode(): b"22", b"large": b"0123456789abcdef" * 1_200_000}


def test_a_tree_is_sent_once_read_back_and_removed(place: Place, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", TREE)
    hibali = place.hibali
    receipt = hibali("push", source, "there:data", "--json", exit=0).last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (4, "digest")
    assert place.objects() == TREE
    assert hibali("push", source, "there:data", "--json", exit=0).last["files_moved"] == 0
    hibali("verify", source, "there:data", exit=0)
    pulled = hibali("pull", "there:data", tmp_path / "pulled", "--json", exit=0).last
    assert (pulled["files_moved"], pulled["proof_moved"]) == (4, "recorded")
    assert files_in(tmp_path / "pulled") == TREE
    assert hibali("ls", "there:data", "--json", exit=0).lines[0]["path"] == "a"
    assert hibali("cat", "there:data/a/b", exit=0).out == b"1"
    (source / "a" / "b").unlink()
    deleted = hibali("sync", source, "there:data", "--delete", "--json", exit=0).last
    assert deleted["files_deleted"] == 1
    assert b"a/b" not in place.objects()
    hibali("rm", "there:data", "--recursive", "--yes", exit=0)
    assert place.bucket.keys() == []


def test_a_site_is_added_checked_and_diagnosed(place: Place) -> None:
    hibali, url = place.hibali, f"ebrains.url={place.double.url}"
    public = place.double.add_bucket("public-scans", public=True)
    public.name = place.bucket.name
    place.bucket.put("scan", b"1")
    answer = hibali("sites", "add", "big", "--ebrains", "public-scans", "--set", url, "--json", exit=0)
    facts = answer.last["facts"]
    assert (facts["access"], facts["is public"], facts["writable"]) == ("without a login", True, False)
    assert (facts["objects count"], facts["bytes"]) == (1, 1)
    assert hibali("sites", "check", "there", "--json", exit=0).last["facts"]["writable"] is True
    name, _ = place.double.add_dataset(place.bucket.name, public=True)
    words = ("sites", "add", "maps", "--ebrains-dataset", name, "--set", url, "--json")
    assert hibali(*words, exit=0).last["facts"]["dataset"] == name
    for site in () if "setup" in removed_folders() else ("big", "there", "maps"):
        hibali("doctor", site, exit=0)
    assert hibali("sites", "add", "x1", "--ebrains", "a", "--ebrains-dataset", name, "--no-check").exit == 2
    assert hibali("sites", "add", "x2", "--ebrains", "a", "--s3", "aws", "--no-check").exit == 2


def test_a_public_bucket_is_read_without_a_login(place: Place, tmp_path: Path) -> None:
    place.double.add_bucket(place.bucket.name).public = True
    place.add(f'bucket = "{place.bucket.name}"')
    for name, content in TREE.items():
        place.bucket.put(f"data/{name.decode()}", content)
    receipt = place.hibali("pull", "there:data", tmp_path / "pulled", "--json", exit=0).last
    # SeaweedFS's ETag of an object in one part is its MD5
    assert (receipt["files_moved"], receipt["proof_moved"]) == (4, "claimed")
    assert files_in(tmp_path / "pulled") == TREE
    source = make_tree(tmp_path / "source", {b"a": b"1"})
    assert place.hibali("push", source, "there:data", "--json", exit=8).last["code"] == "read-only-site"


@pytest.mark.heavy
@pytest.mark.parametrize("count", [200, 3000])
def test_nothing_finished_is_sent_again_after_kills_with_short_tokens(
    place: Place, tmp_path: Path, count: int
) -> None:
    double, kills = place.double, 4
    double.token_uses = 97
    tree = {b"f%d/%04d" % (number % 7, number): b"%d." % number * 90 for number in range(count)}
    source = make_tree(tmp_path / "source", tree)
    for step in range(kills):
        enough = count * (step + 1) // (kills + 2)
        code = place.kill_when(
            lambda enough=enough: len(place.uploads()) >= enough, "push", source, "there:data"
        )
        assert code == -signal.SIGKILL
    assert place.hibali("push", source, "there:data", "--json", exit=0, timeout=400).last["files_failed"] == 0
    assert place.objects() == tree
    again = sum(place.uploads().values()) - count
    assert again <= kills * CONNECTIONS, "more than what was under way at the kills"
    double.downloaded.clear()
    target, finished = tmp_path / "target", {}
    for step in range(kills):
        enough = count * (step + 1) // (kills + 2)
        reached = lambda enough=enough: len(double.downloaded) >= enough  # noqa: E731
        assert place.kill_when(reached, "pull", "there:data", target) == -signal.SIGKILL
        finished |= {f"data/{name.decode()}": 1 for name in files_in(target)}
        finished = {key: double.downloaded[key] for key in finished}
    place.hibali("pull", "there:data", target, exit=0, timeout=400)
    assert files_in(target) == tree
    assert {key: double.downloaded[key] for key in finished} == finished
    commands = 2 * (kills + 1)
    assert double.exchanges <= commands + len(double.seen) / double.token_uses, "a token was renewed twice"
    assert double.exchanges > commands


def test_a_rejected_token_is_renewed_once_by_its_command(place: Place, tmp_path: Path) -> None:
    double = place.double
    place.add(f'bucket = "{place.bucket.name}"\n{place.command()}')
    double.token_uses = 60
    tree = {b"%03d" % number: b"%d" % number for number in range(60)}
    source = make_tree(tmp_path / "source", tree)
    place.hibali("push", source, "there:data", exit=0)
    assert place.objects() == tree
    calls = place.calls.stat().st_size
    assert 1 < calls <= 1 + len(double.seen) / double.token_uses


@pytest.mark.heavy
def test_a_token_that_cannot_be_renewed_ends_with_4(place: Place, tmp_path: Path) -> None:
    place.add(f'bucket = "{place.bucket.name}"\ntoken_variable = "TEST_EBRAINS_TOKEN"')
    place.hibali.env["TEST_EBRAINS_TOKEN"] = place.double.token_file.read_text().strip()
    place.double.token_uses = 30
    source = make_tree(tmp_path / "source", {b"%03d" % number: b"1" for number in range(60)})
    answer = place.hibali("push", source, "there:data", "--json", exit=4)
    assert answer.last["code"] == "expired"
    place.hibali.env["TEST_EBRAINS_TOKEN"] = place.double.token_file.read_text().strip()
    place.double.token_uses = None
    place.hibali("push", source, "there:data", exit=0)
    assert max(place.uploads().values()) == 1


def write_random(path: Path, size: int) -> None:
    """Write that many MiB that cannot be compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(size)  # noqa: S311 - the same content each time
    with path.open("wb") as stream:
        for _ in range(size):
            stream.write(numbers.randbytes(MIB))


def received(target: Path) -> int:
    """Return the size of the partial file in a folder."""
    sizes = [0]
    for path in target.glob(".hibali-*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("size", "each"), [(256, 40), pytest.param(2048, 256, marks=pytest.mark.timeout(1200))]
)
def test_a_large_object_resumes_inside_after_each_kill(
    place: Place, tmp_path: Path, size: int, each: int
) -> None:
    double, large, target = place.double, tmp_path / "source" / "large", tmp_path / "target"
    write_random(large, size)
    place.hibali("push", large, "there:data/", exit=0, timeout=600)
    double.downloaded.clear()
    double.address_uses = 3
    kills = 5
    for step in range(kills):
        enough = (step + 1) * each * MIB
        reached = lambda enough=enough: received(target) >= enough  # noqa: E731
        assert place.kill_when(reached, "pull", "there:data", target) == -signal.SIGKILL
        assert not (target / "large").exists(), "a file is visible before it is complete"
    before = double.downloaded["data/large"]
    receipt = place.hibali("pull", "there:data", target, "--json", exit=0, timeout=600).last
    moved = double.downloaded["data/large"]
    print(
        f"\n{size} MiB, killed {kills} times, {moved / MIB:.0f} MiB received,"
        f" {(moved / MIB - size) / kills:.1f} MiB more for each kill"
    )
    assert receipt["proof_moved"] == "recorded"
    assert moved <= size * MIB * OVERHEAD + kills * IN_FLIGHT
    assert moved - before <= (size - kills * each) * MIB + IN_FLIGHT
    assert filecmp.cmp(target / "large", large, shallow=False)


def test_consent_is_requested_once_and_awaited(place: Place, tmp_path: Path) -> None:
    name, dataset = place.double.add_dataset(place.bucket.name, guarded=True)
    place.bucket.put("data/scan", b"1")
    place.add(f'dataset = "{name}"\n{place.command()}')
    for words in (("pull", "there:data", tmp_path / "target"), ("sites", "check", "there"), ("ls", "there:")):
        answer = place.hibali(*words, "--json", exit=5)
        assert answer.last["code"] == "consent-pending", answer
        assert not answer.last["transient"]
    assert place.double.mails == [name]
    dataset.granted = True
    place.hibali("pull", "there:data", tmp_path / "target", exit=0)
    assert files_in(tmp_path / "target") == {b"scan": b"1"}
    dataset.granted = False
    assert b"hibali requested access for you" in place.hibali("ls", "there:", exit=5).err
    assert place.double.mails == [name, name]


@pytest.mark.heavy
def test_faults_of_the_service_and_of_the_object_store_are_overcome(place: Place, tmp_path: Path) -> None:
    double = place.double
    tree = {**TREE, **{b"s/%02d" % number: b"%d" % number * 1000 for number in range(20)}}
    source = make_tree(tmp_path / "source", tree)
    place.hibali("sites", "check", "there", exit=0)
    double.fault("429", "PUT /api", value="1")
    double.fault("500", "GET /api", times=2)
    double.fault("lost", "PUT /api", times=2)
    double.fault("store-500", "PUT /")
    double.fault("store-lost", "/s/03")
    double.fault("store-lost", "/s/04")
    place.hibali("push", source, "there:data", exit=0)
    assert place.objects() == tree
    double.fault("cut", "/large", times=2)
    double.fault("lost", "GET /api", times=2)
    double.fault("store-500", "GET /", times=2)
    double.address_uses = 1
    place.hibali("pull", "there:data", tmp_path / "pulled", exit=0)
    assert files_in(tmp_path / "pulled") == tree


def test_damage_on_the_way_is_found(place: Place, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {b"a": b"1" * 1000})
    place.double.fault("flip", f"GET /{place.bucket.name}/data/a")
    receipt = place.hibali("push", source, "there:data", "--json", exit=0).last
    assert receipt["proof_moved"] == "digest"
    assert place.uploads()["data/a"] == 2, "it was sent again after it was read back"
    place.double.fault("flip", f"GET /{place.bucket.name}/data/a", times=100)
    assert place.hibali("pull", "there:data", tmp_path / "pulled", "--json", exit=6).last["files_failed"] == 1
    assert files_in(tmp_path / "pulled") == {}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("hashes", "locks"), [("constant", True), pytest.param("none", False, marks=pytest.mark.heavy)]
)
def test_what_the_service_does_not_document_changes_nothing(
    place: Place, tmp_path: Path, hashes: str, locks: bool
) -> None:
    """What `hash` is, the largest page, whether conditions are honoured, and who notices a missing object."""
    double = place.double
    double.hashes, double.page = hashes, 3
    double.conditions = double.checks_existence = locks
    source = make_tree(tmp_path / "source", TREE)
    answer = place.hibali("push", source, "there:data", exit=0)
    assert (b"does not support locks" in answer.err) is not locks
    assert place.hibali("push", source, "there:data", "--json", exit=0).last["files_moved"] == 0
    pulled = place.hibali("pull", "there:data", tmp_path / "pulled", "--json", exit=0).last
    assert (pulled["files_moved"], pulled["proof_moved"]) == (4, "recorded")
    assert files_in(tmp_path / "pulled") == TREE


def test_names_of_operations_are_refused_before_anything_changes(place: Place, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {b"a": b"1", b"b/copy": b"2"})
    answer = place.hibali("push", source, "there:data", "--json")
    assert answer.exit in {6, 8}
    assert b"copy" in answer.out + answer.err
    assert place.objects() in ({}, {b"a": b"1"})


@pytest.mark.heavy
def test_no_secret_is_in_an_argument_a_file_or_the_output(place: Place, tmp_path: Path) -> None:
    hibali, double = place.hibali, place.double
    hibali.forks = False
    secrets = ["planted-token", double.refresh_token, "X-Amz-Signature", "X-Amz-Credential"]
    source = make_tree(tmp_path / "source", {b"%02d" % number: b"%d" % number for number in range(10)})
    name, _ = double.add_dataset(place.bucket.name, guarded=True)
    with watch_process_arguments(secrets) as found:
        answers = [
            hibali("push", source, "there:data", "-v", "--json", exit=0),
            hibali("pull", "there:data", tmp_path / "pulled", "-v", exit=0),
            hibali("sites", "show", "there", "-v", exit=0),
            hibali("sites", "check", "there", "-v", exit=0),
        ]
        double.fault("store-redirect", "GET /", times=100, value="http://127.0.0.1:1/X-Amz-Signature")
        answers.append(hibali("cat", "there:data/01", "-v", "--json", exit=2))
        double.expire_tokens()
        double.refresh_token = "another"
        answers.append(hibali("ls", "there:data", "-v", exit=4))
        place.add(f'dataset = "{name}"\n{place.command()}')
        answers.append(hibali("ls", "there:", "-v", exit=5))
    assert found == []
    kept = list((hibali.home.folder / "state" / "bearer").rglob("access.json"))
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600]  # what processes of this account share
    assert [path.parent.stat().st_mode & 0o777 for path in kept] == [0o700]
    check_secrets_absent(secrets, hibali, *answers, but=kept)
