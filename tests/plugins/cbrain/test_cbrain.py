"""Test transfers with the double of a CBRAIN portal: pushes, pulls, registration in bulk, lost answers and kills."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.cbrain import (
    CORRUPT,
    DROPPED,
    EXPIRED,
    LOST,
    PASSWORD,
    STATUS,
    WRONG_SIZE,
    CbrainDouble,
    Provider,
)
from tests.services.cbrain_contents import BucketContents
from tests.services.fixtures import START
from tests.support.folders import removed_folders
from tests.support.secret_search import check_secrets_absent
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

CONFIG = """version = 1
[sites.mcgill]
kind = "cbrain"
[sites.mcgill.cbrain]
url = "{url}"
login = "me"
password_command = ["printenv", "TEST_CBRAIN_SECRET"]
{more}
[sites.mcgill.limits]
settling = "1s"
"""


@pytest.fixture
def portal(cbrain: CbrainDouble, hibali: Any) -> Iterator[CbrainDouble]:
    """A portal with the data provider `lab`, which is the site `mcgill`; it must refuse no request."""
    cbrain.add_provider("lab")
    configure(cbrain, hibali)
    yield cbrain
    assert cbrain.refused == []


def configure(portal: CbrainDouble, hibali: Any, more: str = "", others: str = "") -> None:
    hibali.env["TEST_CBRAIN_SECRET"] = PASSWORD
    hibali.home.config.write_text(CONFIG.format(url=portal.url, more=more) + others)


def lab(portal: CbrainDouble) -> Provider:
    return next(iter(portal.providers.values()))


def make_files(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ids(portal: CbrainDouble, provider: Provider | None = None) -> dict[str, int]:
    """Return the id of each userfile by name, which must be the only one."""
    found = portal.named(provider or lab(portal))
    assert all(len(each) == 1 for each in found.values()), found
    return {name: each[0].id for name, each in found.items()}


def posts(portal: CbrainDouble, path: str = "/userfiles") -> int:
    return portal.requests.count(f"POST {path}")


def kill_at(portal: CbrainDouble, process: Any, path: str, count: int) -> None:
    """Kill hibali when the portal got this many POST requests, unless it has ended."""
    wait_for(lambda: posts(portal, path) >= count or process.poll() is not None)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


SOME = {"a.txt": b"abc", "scan.nii.gz": bytes(range(256)) * 40_000, "empty.csv": b""}


def test_files_are_pushed_once_and_pulled(portal: CbrainDouble, hibali: Any, tmp_path: Path) -> None:
    source = make_files(tmp_path / "data", SOME)
    hibali("push", source, "mcgill:@lab", exit=0)
    named = portal.named(lab(portal))
    assert {name: each[0].type for name, each in named.items()} == {
        "a.txt": "TextFile",
        "scan.nii.gz": "NiftiFile",
        "empty.csv": "CSVFile",
    }
    assert read_files(lab(portal).contents.root) == SOME  # type: ignore[attr-defined]
    before, sent = ids(portal), posts(portal)
    receipt = hibali("push", "--json", source, "mcgill:@lab", exit=0).last
    assert (receipt["files_kept"], receipt["files_moved"]) == (3, 0)
    assert (ids(portal), posts(portal)) == (before, sent)
    hibali("pull", "mcgill:@lab", tmp_path / "back", exit=0)
    assert read_files(tmp_path / "back") == SOME
    hibali("verify", source, "mcgill:@lab", exit=0)


def test_one_file_is_pushed_listed_and_removed(portal: CbrainDouble, hibali: Any, tmp_path: Path) -> None:
    source = make_files(tmp_path, {"a.txt": b"abc"})
    hibali("push", source / "a.txt", "mcgill:@lab/b.txt", exit=0)
    hibali("push", source / "a.txt", "mcgill:@lab/", exit=0)
    assert sorted(ids(portal)) == ["a.txt", "b.txt"]
    assert b"@lab" in hibali("ls", "mcgill:", exit=0).out
    assert hibali("ls", "mcgill:@lab", exit=0).out.count(b".txt") == 2
    assert hibali("cat", "mcgill:@lab/b.txt", exit=0).out == b"abc"
    hibali("rm", "--yes", "mcgill:@lab/b.txt", exit=0)
    assert sorted(ids(portal)) == ["a.txt"]
    assert lab(portal).contents.names().keys() == {"a.txt"}


def test_a_token_from_another_address_names_the_cure(
    portal: CbrainDouble, hibali: Any, tmp_path: Path
) -> None:
    configure(portal, hibali)
    config = hibali.home.config.read_text()
    hibali.home.config.write_text(config.replace('password_command = ["printenv", "TEST_CBRAIN_SECRET"]', ""))
    terminal = Terminal([*START, "sites", "login", "mcgill"], hibali.env)
    terminal.until(lambda screen: "Password of me" in screen)
    terminal.press(PASSWORD.encode() + b"\n")
    assert terminal.end() == 0, terminal.written
    assert PASSWORD.encode() not in terminal.written
    source = make_files(tmp_path / "data", {"a.txt": b"abc"})
    hibali("push", source, "mcgill:@lab", exit=0)
    portal.address = "192.0.2.7"
    error = hibali("push", "--json", source, "mcgill:@lab", exit=4).last
    assert (error["code"], error["hint"]) == ("token-rejected", "To log in: hibali sites login mcgill")
    portal.address = None
    hibali("sites", "logout", "mcgill", exit=0)
    assert hibali("ls", "--json", "mcgill:@lab", exit=4).last["code"] == "cbrain-login-needed"
    check_secrets_absent([PASSWORD], hibali)


def test_tokens_that_expire_in_the_middle_are_renewed(
    portal: CbrainDouble, hibali: Any, tmp_path: Path
) -> None:
    contents = {f"f{number}.txt": b"x" * number for number in range(12)} | {"big.dat": bytes(9_000_000)}
    source = make_files(tmp_path / "data", contents)
    for after in (2, 5, 9):
        portal.fail("POST", "/userfiles", EXPIRED, after=after)
    portal.fail("GET", "/userfiles", EXPIRED, after=7)
    hibali("push", source, "mcgill:@lab", exit=0)
    assert ids(portal).keys() == contents.keys()
    portal.fail("GET", "/userfiles/[0-9]+/content", EXPIRED, after=4)
    hibali("pull", "mcgill:@lab", tmp_path / "back", exit=0)
    assert read_files(tmp_path / "back") == contents


@pytest.mark.parametrize("kind", [LOST, DROPPED, WRONG_SIZE, CORRUPT])
def test_a_failing_upload_makes_no_second_file(
    portal: CbrainDouble, hibali: Any, tmp_path: Path, kind: str
) -> None:
    contents = {f"f{number}.txt": b"abc" * (number + 1) for number in range(6)}
    source = make_files(tmp_path / "data", contents)
    portal.fail("POST", "/userfiles", kind, after=1, times=2)
    for _ in range(3):
        if hibali("push", source, "mcgill:@lab").exit == 0:
            break
    assert ids(portal).keys() == contents.keys()
    portal.settle()
    assert read_files(lab(portal).contents.root) == contents  # type: ignore[attr-defined]
    receipt = hibali("push", "--json", source, "mcgill:@lab", exit=0).last
    assert receipt["files_kept"] == 6


def test_killed_pushes_make_no_second_file(portal: CbrainDouble, hibali: Any, tmp_path: Path) -> None:
    contents = {f"f{number:02}.txt": b"abc" * (number + 1) for number in range(20)}
    source = make_files(tmp_path / "data", contents)
    for count in (1, 5, 9):
        kill_at(portal, hibali.start("push", source, "mcgill:@lab"), "/userfiles", posts(portal) + count)
    hibali("push", source, "mcgill:@lab", exit=0)
    assert ids(portal).keys() == contents.keys()
    assert read_files(lab(portal).contents.root) == contents  # type: ignore[attr-defined]


def test_an_upload_that_is_never_copied_is_named(portal: CbrainDouble, hibali: Any, tmp_path: Path) -> None:
    configure(portal, hibali, more='copy_wait = "1s"')
    portal.copy_after = 1_000_000
    source = make_files(tmp_path / "data", {"a.txt": b"abc"})
    assert hibali("push", "--json", source, "mcgill:@lab", exit=5).last["code"] == "not-copied-yet"
    portal.settle()
    hibali("push", source, "mcgill:@lab", exit=0)
    assert list(ids(portal)) == ["a.txt"]


def test_another_file_of_that_name_is_replaced_only_by_plan(
    portal: CbrainDouble, hibali: Any, tmp_path: Path
) -> None:
    source = make_files(tmp_path / "data", {"a.txt": b"abc"})
    hibali("push", source, "mcgill:@lab", exit=0)
    before = ids(portal)
    (source / "a.txt").write_bytes(b"xyz")
    hibali("push", source, "mcgill:@lab", exit=0)
    assert lab(portal).contents.read("a.txt") == b"xyz"
    assert ids(portal).keys() == before.keys()
    portal.add_userfile(lab(portal), "b.txt", b"the same")
    make_files(source, {"b.txt": b"the same"})
    kept = ids(portal)["b.txt"]
    hibali("push", source, "mcgill:@lab", exit=0)
    assert ids(portal)["b.txt"] == kept


def test_names_and_folders_that_a_provider_cannot_have_are_refused(
    portal: CbrainDouble, hibali: Any, tmp_path: Path
) -> None:
    for name in ("sub/a.txt", "with space.txt", ".hidden", "é.txt"):
        source = make_files(tmp_path / name.replace("/", "-"), {name: b"abc"})
        assert hibali("push", source, "mcgill:@lab", exit=8).exit == 8
    source = make_files(tmp_path / "data", {"a.txt": b"abc"})
    hibali("push", source, "mcgill:@lab/folder", exit=8)
    error = hibali("push", "--json", source, "mcgill:@lap", exit=3).last
    assert (error["code"], error["hint"]) == ("no-such-provider", "Did you mean @lab?")
    assert ids(portal) == {}


def test_types_can_be_given(portal: CbrainDouble, hibali: Any, tmp_path: Path) -> None:
    source = make_files(tmp_path / "data", {"a.txt": b"abc"})
    hibali("push", "--as-type", "MincFile", source, "mcgill:@lab", exit=0)
    assert portal.named(lab(portal))["a.txt"][0].type == "MincFile"
    error = hibali("sync", "--as-type", "MincFile", source, tmp_path / "x", exit=2)
    assert b"--as-type needs a target at a CBRAIN portal" in error.err
    hibali("push", "--as-type", "no type", source, "mcgill:@lab", exit=2)


COLLECTION = {"sub-01/anat/t1.nii": b"t1" * 5000, "sub-01/a b.txt": b"text", "top.json": b"{}"}


@pytest.mark.heavy
def test_collections_are_read_as_folders(portal: CbrainDouble, hibali: Any, tmp_path: Path) -> None:
    portal.add_userfile(lab(portal), "study", COLLECTION)
    portal.add_userfile(lab(portal), "a.txt", b"abc")
    hibali("pull", "mcgill:@lab/study", tmp_path / "one", exit=0)
    assert read_files(tmp_path / "one") == COLLECTION
    hibali("pull", "mcgill:@lab/study/sub-01", tmp_path / "below", exit=0)
    assert read_files(tmp_path / "below") == {
        "anat/t1.nii": COLLECTION["sub-01/anat/t1.nii"],
        "a b.txt": b"text",
    }
    hibali("pull", "mcgill:@lab", tmp_path / "all", exit=0)
    assert read_files(tmp_path / "all") == {
        "a.txt": b"abc",
        **{f"study/{name}": content for name, content in COLLECTION.items()},
    }
    downloads = portal.requests.count("POST /userfiles/download")
    hibali("push", make_files(tmp_path / "data", {"b.txt": b"b"}), "mcgill:@lab", exit=0)
    hibali("ls", "mcgill:@lab", exit=0)
    assert portal.requests.count("POST /userfiles/download") == downloads
    hibali("push", "--delete", "--max-delete", "5", tmp_path / "data", "mcgill:@lab", exit=0)
    assert sorted(ids(portal)) == ["b.txt", "study"]
    hibali("sync", "--delete", "mcgill:@lab", tmp_path / "all", exit=8)
    hibali("rm", "--yes", "--recursive", "mcgill:@lab/study", exit=0)
    assert sorted(ids(portal)) == ["b.txt"]


def test_a_site_is_added_checked_and_diagnosed(portal: CbrainDouble, hibali: Any) -> None:
    command = f"{sys.executable} -c \"import os; print(os.environ['TEST_CBRAIN_SECRET'])\""
    hibali.home.config.unlink()
    hibali(
        *("sites", "add", "mcgill", "--cbrain", portal.url, "--set", "cbrain.login=me"),
        *("--set", f"cbrain.password_command={['sh', '-c', command]!r}".replace("'sh'", '"sh"')),
        "--no-check",
        "--dry-run",
    )
    hibali("sites", "add", "mcgill", "--cbrain", portal.url, exit=4)
    configure(portal, hibali)
    facts = hibali("sites", "check", "mcgill", "--json", exit=0).lines[0]["facts"]
    assert (facts["data providers"], facts["writable"]) == ("lab", True)
    if "setup" not in removed_folders():
        hibali("doctor", "mcgill", exit=0)
    portal.fail("GET", "/session", STATUS, status=403)
    assert hibali("sites", "check", "mcgill", "--json", exit=4).last["code"] == "denied"
    hibali("sites", "show", "mcgill", exit=0)


# Registration in bulk, with a data provider in a bucket that is also a site


@pytest.fixture
def bulk(cbrain: CbrainDouble, hibali: Any, object_store: Any) -> Iterator[tuple[CbrainDouble, Provider]]:
    """A portal with the data provider `cloud` in a bucket of a real object store, which is the site `bucket`."""
    bucket = object_store.bucket()
    contents = BucketContents(bucket.client, bucket.name, "cbrain")
    provider = cbrain.add_provider("cloud", contents=contents, kind="S3FlatDataProvider")
    hibali.env.update(object_store.env)
    configure(
        cbrain,
        hibali,
        more='[sites.mcgill.cbrain.providers]\ncloud = "bucket:cbrain"\n',
        others=f'[sites.bucket]\nkind = "s3"\n[sites.bucket.s3]\nendpoint = "{object_store.endpoint}"\n'
        f'region = "{object_store.region}"\nbucket = "{bucket.name}"\n',
    )
    yield cbrain, provider
    assert cbrain.refused == []


def data_of(provider: Provider) -> set[str]:
    return {name for name in provider.contents.names() if name != ".hibali"}


Bulk = tuple[CbrainDouble, Provider]


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.heavy)])
def test_many_files_registered_twice_have_the_same_ids(
    bulk: Bulk, hibali: Any, tmp_path: Path, count: int
) -> None:
    portal, cloud = bulk
    contents = {f"f{number:04}.txt": f"{number}".encode() for number in range(count)}
    source = make_files(tmp_path / "data", contents)
    hibali("push", source, "mcgill:@cloud", exit=0)
    before = ids(portal, cloud)
    assert before.keys() == contents.keys()
    assert (posts(portal), posts(portal, f"/data_providers/{cloud.id}/register")) == (0, count // 100)
    receipt = hibali("push", "--json", source, "mcgill:@cloud", exit=0).last
    assert (receipt["files_kept"], ids(portal, cloud)) == (count, before)
    last = f"f{count - 1:04}.txt"
    for name in ("f0000.txt", last):
        os.utime(source / name, (1, 1))
    hibali("push", source, "mcgill:@cloud", exit=0)
    assert ids(portal, cloud) == before
    assert sorted(portal.marked_newer) == sorted([before["f0000.txt"], before[last]])
    hibali("pull", "mcgill:@cloud", tmp_path / "back", exit=0)
    assert read_files(tmp_path / "back") == contents
    hibali("verify", source, "mcgill:@cloud", exit=0)


def test_folders_become_collections_and_are_removed(bulk: Bulk, hibali: Any, tmp_path: Path) -> None:
    portal, cloud = bulk
    source = make_files(
        tmp_path / "data", {"a.txt": b"abc", **{f"study/{n}": c for n, c in COLLECTION.items()}}
    )
    hibali("push", source, "mcgill:@cloud", exit=0)
    named = portal.named(cloud)
    assert {name: each[0].type for name, each in named.items()} == {
        "a.txt": "TextFile",
        "study": "FileCollection",
    }
    hibali("pull", "mcgill:@cloud/study", tmp_path / "back", exit=0)
    assert read_files(tmp_path / "back") == COLLECTION
    (source / "a.txt").write_bytes(b"longer")
    (source / "study" / "top.json").unlink()
    hibali("push", "--delete", source, "mcgill:@cloud", exit=0)
    assert named["study"][0].id in portal.marked_newer
    assert named["a.txt"][0].size == 6
    for path in sorted((source / "study").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (source / "study").rmdir()
    hibali("push", "--delete", source, "mcgill:@cloud", exit=0)
    assert (ids(portal, cloud).keys(), data_of(cloud)) == ({"a.txt"}, {"a.txt"})
    (source / "a.txt").rename(source / "b.txt")
    hibali("push", "--delete", source, "mcgill:@cloud", exit=0)
    assert (ids(portal, cloud).keys(), data_of(cloud)) == ({"b.txt"}, {"b.txt"})


def test_registered_files_and_collections_are_removed(bulk: Bulk, hibali: Any, tmp_path: Path) -> None:
    portal, cloud = bulk
    source = make_files(
        tmp_path / "data",
        {"a.txt": b"abc", "b.txt": b"b", **{f"study/{n}": c for n, c in COLLECTION.items()}},
    )
    hibali("push", source, "mcgill:@cloud", exit=0)
    hibali("rm", "--yes", "mcgill:@cloud/a.txt", exit=0)
    hibali("rm", "--yes", "--recursive", "mcgill:@cloud/study", exit=0)
    assert (ids(portal, cloud).keys(), data_of(cloud)) == ({"b.txt"}, {"b.txt"})


@pytest.mark.heavy
@pytest.mark.parametrize("synchronous", [False, True], ids=["since-2025", "before"])
def test_registrations_and_deletions_in_the_background_are_awaited(
    bulk: Bulk, hibali: Any, tmp_path: Path, synchronous: bool
) -> None:
    """Since 7.0.0 (aces/cbrain, 2025-05) `register` lists no new names, and `delete_files` no ids: both happen later."""
    portal, cloud = bulk
    portal.synchronous, portal.background_after = synchronous, 5
    source = make_files(tmp_path / "data", {"a.txt": b"abc", "b.nii": b"b"})
    hibali("push", source, "mcgill:@cloud", exit=0)
    assert ids(portal, cloud).keys() == {"a.txt", "b.nii"}
    assert posts(portal, f"/data_providers/{cloud.id}/register") == 1
    hibali("rm", "--yes", "mcgill:@cloud/a.txt", exit=0)
    assert (ids(portal, cloud).keys(), data_of(cloud)) == ({"b.nii"}, {"b.nii"})


def test_a_portal_that_never_finishes_in_the_background_is_named(
    bulk: Bulk, hibali: Any, tmp_path: Path
) -> None:
    portal, cloud = bulk
    portal.background_after = 1_000_000
    hibali("config", "set", "sites.mcgill.cbrain.copy_wait", "1s", exit=0)
    source = make_files(tmp_path / "data", {"a.txt": b"abc"})
    error = hibali("push", "--json", source, "mcgill:@cloud", exit=5).last
    assert (error["code"], "background activity" in error["message"]) == ("not-copied-yet", True)
    for activity in portal.activities.values():
        activity.run()
    hibali("push", source, "mcgill:@cloud", exit=0)
    assert ids(portal, cloud).keys() == {"a.txt"}


@pytest.mark.parametrize(
    "kind", [LOST, *(pytest.param(each, marks=pytest.mark.heavy) for each in (EXPIRED, DROPPED))]
)
def test_registering_survives_lost_answers(bulk: Bulk, hibali: Any, tmp_path: Path, kind: str) -> None:
    portal, cloud = bulk
    contents = {f"f{number:03}.txt": b"x" for number in range(250)}
    source = make_files(tmp_path / "data", contents)
    portal.fail("POST", f"/data_providers/{cloud.id}/register", kind, after=1)
    hibali("push", source, "mcgill:@cloud", exit=0)
    assert ids(portal, cloud).keys() == contents.keys()


def test_a_killed_push_is_registered_by_the_next_one(bulk: Bulk, hibali: Any, tmp_path: Path) -> None:
    portal, cloud = bulk
    contents = {f"f{number:03}.txt": b"x" for number in range(250)}
    source = make_files(tmp_path / "data", contents)
    process = hibali.start("push", source, "mcgill:@cloud")
    kill_at(portal, process, f"/data_providers/{cloud.id}/register", 1)
    before = ids(portal, cloud)
    hibali("push", source, "mcgill:@cloud", exit=0)
    after = ids(portal, cloud)
    assert after.keys() == contents.keys()
    assert before.items() <= after.items()


def test_a_type_that_the_portal_lacks_is_named(bulk: Bulk, hibali: Any, tmp_path: Path) -> None:
    portal, cloud = bulk
    source = make_files(tmp_path / "data", {"a.txt": b"abc"})
    error = hibali("push", "--json", "--as-type", "NoSuchFile", source, "mcgill:@cloud", exit=6).last
    assert (error["code"], "Type is not a valid file type" in error["message"]) == ("not-registered", True)
    hibali("push", source, "mcgill:@cloud", exit=0)
    assert list(ids(portal, cloud)) == ["a.txt"]


def test_a_provider_that_registers_nothing_is_named(bulk: Bulk, hibali: Any) -> None:
    _, cloud = bulk
    cloud.browsable = False
    assert hibali("sites", "check", "mcgill", "--json").last["code"] == "provider-not-usable"
    cloud.browsable, cloud.online = True, False
    assert hibali("sites", "check", "mcgill", "--json").last["code"] == "provider-not-usable"
