"""Test every kind of remote: two catalogues exchange versions without loss or change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from hibali.errors import AccessError, HibaliError, NotFoundError, RefusedError, TryLaterError
from hibali.http.client import Response
from hibali_plugins.exchange.remotes.base import LARGEST_FILE, PUBLISHED, Remote, RemoteSpec
from hibali_plugins.exchange.remotes.folder import FolderRemote
from hibali_plugins.exchange.remotes.git import GitRemote
from hibali_plugins.exchange.site_remotes import SiteRemote
from registry.catalogue_folder import Deprecation
from registry.descriptor import read_descriptor
from registry.images.record import write_record
from registry.signature import sign, signed_text
from tests.contracts.subjects import Subject, object_stores, subjects
from tests.plugins.exchange.accounts import Site
from tests.services.image import write_image
from tests.support.catalogues import forge, git, raw
from tests.support.requirements import skip_or_fail
from tests.support.trees import make_tree
from transfers import single_files
from transfers.stores.s3.requests import Requests
from transfers.stores.s3.store import S3Store

FOLDER = "shared pipelines/lab"
Files = dict[str, bytes]


@dataclass
class RemoteSetup:
    """A new remote, a function that opens it, and access to it without hibali."""

    open: Callable[[RemoteSpec], Remote]
    url: str
    plant: Callable[[Files], None]
    subject: Subject | None = None
    opened: list[Remote] = field(default_factory=list)

    def site(self, folder: Path) -> Site:
        return Site(folder, self._open, self.url)

    def _open(self, spec: RemoteSpec) -> Remote:
        self.opened.append(self.open(spec))
        return self.opened[-1]


def remote_kinds() -> list[Any]:
    """Return every kind of remote, and a site of each writable kind; those like another one are `heavy`."""
    more = [pytest.param(word, marks=pytest.mark.heavy) for word in ("ria", "local", "ssh", "sftp", "webdav")]
    return ["git", "folder", *object_stores(), *more]


@pytest.fixture(params=remote_kinds())
def remote_setup(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RemoteSetup]:
    if request.param in {"git", "ria", "folder"}:
        yield _setup_on_this_machine(request.param, tmp_path)
        return
    for subject in subjects(request.param, request, tmp_path, monkeypatch):
        subject.open(FOLDER).make_root()
        made = _setup_at_site(subject)
        yield made
        for remote in made.opened:
            assert isinstance(remote, SiteRemote)
            remote.close()


def _setup_at_site(subject: Subject) -> RemoteSetup:
    location = subject.location(FOLDER)

    def plant(files: Files) -> None:
        subject.backend.plant(FOLDER, {name.encode(): content for name, content in files.items()})

    return RemoteSetup(lambda _: SiteRemote(location), location.text, plant, subject)


def _setup_on_this_machine(word: str, tmp_path: Path) -> RemoteSetup:
    if word == "folder":
        folder = tmp_path / "lab"
        folder.mkdir()
        return RemoteSetup(
            FolderRemote,
            str(folder),
            lambda files: make_tree(folder, {name.encode(): each for name, each in files.items()}),
        )
    if word == "git":
        repository = tmp_path / "lab.git"
        git(tmp_path, "init", "-q", "--bare", "-b", "main", str(repository))
        url = str(repository)
    else:
        identifier = str(uuid.uuid4())
        url = f"ria+file://{tmp_path}/store#{identifier}"
        repository = tmp_path / "store" / identifier[:3] / identifier[3:]
    return RemoteSetup(GitRemote, url, lambda files: forge(repository, dict(files)))


@pytest.fixture
def two_sites(remote_setup: RemoteSetup, tmp_path: Path) -> tuple[Site, Site]:
    return remote_setup.site(tmp_path / "a"), remote_setup.site(tmp_path / "b")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if shutil.which("ssh-keygen") is None:
        skip_or_fail("ssh-keygen is missing")
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def test_published_pipelines_are_fetched_at_the_other_site(two_sites: tuple[Site, Site]) -> None:
    a, b = two_sites
    added = a.catalogue.add(b" " + raw())
    assert a.publish() == {"tool@1.0": "published"}
    assert a.publish() == {"tool@1.0": "same"}
    assert b.fetch() == {"tool@1.0": "fetched"}
    assert b.fetch() == {"tool@1.0": "same"}
    found = b.catalogue.find("tool@1.0")
    assert (found, found.raw) == (added, b" " + raw())


def test_only_named_pipelines_are_exchanged(two_sites: tuple[Site, Site]) -> None:
    a, b = two_sites
    for name, version in (("one", "1"), ("one", "2"), ("two", "1")):
        a.catalogue.add(raw(name, version))
    assert a.publish("one@1", "two@1") == {"one@1": "published", "two@1": "published"}
    assert a.publish("one@2") == {"one@2": "published"}
    assert b.fetch("one") == {"one@1": "fetched", "one@2": "fetched"}
    assert b.references() == ["one@1", "one@2"]
    assert b.fetch("two@1") == {"two@1": "fetched"}
    with pytest.raises(NotFoundError):
        b.fetch("three")


def test_other_content_under_a_version_is_refused_at_both_ends(two_sites: tuple[Site, Site]) -> None:
    a, b = two_sites
    own, theirs = a.catalogue.add(raw()), b.catalogue.add(raw(description="Another."))
    b.catalogue.add(raw("other"))
    assert a.publish() == {"tool@1.0": "published"}
    for act in (b.publish, b.fetch):
        with pytest.raises(RefusedError) as refused:
            act()
        assert (refused.value.code, refused.value.exit) == ("immutable-version", 8)
        assert {own.digest, theirs.digest} <= set(refused.value.message.split())
    assert b.references() == ["other@1.0", "tool@1.0"]
    assert a.fetch() == {"tool@1.0": "same"}


def test_concurrent_publishers_both_succeed(two_sites: tuple[Site, Site]) -> None:
    a, b = two_sites
    a.catalogue.add(raw("one"))
    b.catalogue.add(raw("two"))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda site: site.publish(), (a, b)))
    assert a.fetch() == b.fetch() | {"one@1.0": "same", "two@1.0": "fetched"}
    assert a.references() == b.references() == ["one@1.0", "two@1.0"]


def test_a_deprecation_and_a_signature_can_be_published_later(
    two_sites: tuple[Site, Site], key: Path
) -> None:
    a, b = two_sites
    added = a.catalogue.add(raw())
    a.publish()
    b.fetch()
    a.catalogue.deprecate("tool@1.0", Deprecation("tool@2.0", ""))
    a.catalogue.sign(added, *sign(signed_text(added), key, a.folder))
    assert a.publish() == {"tool@1.0": "added to"}
    assert b.fetch() == {"tool@1.0": "added to"}
    assert b.fetch() == {"tool@1.0": "same"}
    assert b.catalogue.deprecation(added) == Deprecation("tool@2.0", "", b.catalogue.deprecation(added).at)  # type: ignore[union-attr]


def test_an_empty_remote_has_no_pipelines(remote_setup: RemoteSetup, tmp_path: Path) -> None:
    """The first publisher creates the dataset of a RIA store, not a reader."""
    b = remote_setup.site(tmp_path / "b")
    if remote_setup.url.startswith("ria+"):
        with pytest.raises(NotFoundError):
            b.fetch()
        assert not (tmp_path / "store").exists()
    else:
        assert b.fetch() == {}


def test_invalid_names_and_huge_files_are_ignored(remote_setup: RemoteSetup, tmp_path: Path) -> None:
    a, b = remote_setup.site(tmp_path / "a"), remote_setup.site(tmp_path / "b")
    a.catalogue.add(raw())
    a.publish()
    odd = ["UPPER/1/descriptor.json", "a b/1/descriptor.json", "one/descriptor.json", "one/.x/descriptor.json", "caf\u00e9/1/descriptor.json", "README.md"]  # fmt: skip
    remote_setup.plant(dict.fromkeys(odd, raw()) | {"huge/1/descriptor.json": b" " * (LARGEST_FILE + 1)})
    remote_setup.plant({"beside/1/published.json": b"{}", "tool/1.0/notes.txt": b"by hand"})
    assert b.fetch() == {"tool@1.0": "fetched"}
    assert b.catalogue.attachments("tool", "1.0") == {}


@pytest.mark.parametrize(
    ("planted", "code"),
    [(raw(description="Evil."), "tampered"), (b"no json", "invalid-json"), (b"{}", "invalid-descriptor")],
)
def test_tampered_pipelines_are_refused(
    remote_setup: RemoteSetup, tmp_path: Path, planted: bytes, code: str
) -> None:
    a, b = remote_setup.site(tmp_path / "a"), remote_setup.site(tmp_path / "b")
    a.catalogue.add(raw())
    a.catalogue.add(raw("other"))
    a.publish()
    remote_setup.plant({"tool/1.0/descriptor.json": planted})
    with pytest.raises(HibaliError) as refused:
        b.fetch()
    assert (refused.value.code, b.references()) == (code, [])
    assert b.fetch("other") == {"other@1.0": "fetched"}


def test_after_a_kill_before_the_descriptor_the_same_command_resumes(
    remote_setup: RemoteSetup, tmp_path: Path
) -> None:
    """If files are uploaded one by one, the other files of a version without a descriptor reserve it for their publisher."""
    a, b, c = (remote_setup.site(tmp_path / name) for name in "abc")
    a.catalogue.add(raw("before"))
    a.publish()
    own, theirs = a.catalogue.add(raw()), b.catalogue.add(raw(description="Another."))
    record = {"schema": 1, "kind": "published", "digest": own.digest, "by": "a", "at": "earlier"}
    remote_setup.plant({f"tool/1.0/{PUBLISHED}": json.dumps(record).encode()})
    assert c.fetch() == {"before@1.0": "fetched"}
    if isinstance(remote_setup.opened[0], GitRemote):
        return  # a commit is atomic
    with pytest.raises(RefusedError) as refused:
        b.publish()
    assert (refused.value.code, refused.value.exit) == ("immutable-version", 8)
    assert {own.digest, theirs.digest} <= set(refused.value.message.replace(",", "").split())
    assert c.fetch() == {"before@1.0": "same"}
    assert a.publish("tool") == {"tool@1.0": "published"}
    assert c.fetch("tool") == {"tool@1.0": "fetched"}


def test_the_image_record_is_exchanged_and_immutable(remote_setup: RemoteSetup, tmp_path: Path) -> None:
    a, b, c = (remote_setup.site(tmp_path / name) for name in "abc")
    described = raw(**{"container-image": {"type": "docker", "image": "lab/tool:1"}})
    records = []
    for site in (a, c):
        archive = site.folder / "image.tar"
        write_image(archive, "lab/tool:1", {"bin/tool": os.urandom(1000)}, {})
        records.append(site.catalogue.images.add(site.catalogue.add(described), archive)[0])
    assert a.publish() == {"tool@1.0": "published"}
    assert b.fetch() == {"tool@1.0": "fetched"}
    assert b.catalogue.image(b.catalogue.find("tool")) == records[0]
    for act in (c.publish, c.fetch):
        with pytest.raises(RefusedError) as refused:
            act()
        assert refused.value.code == "immutable-image"
        assert {each.digest for each in records} <= set(refused.value.message.replace(",", "").split())


def test_the_first_image_of_a_version_is_not_replaced(remote_setup: RemoteSetup, tmp_path: Path) -> None:
    a, b = remote_setup.site(tmp_path / "a"), remote_setup.site(tmp_path / "b")
    if isinstance(a.remote, GitRemote):
        return  # a commit is atomic
    described = raw(**{"container-image": {"type": "docker", "image": "lab/tool:1"}})
    archive = tmp_path / "image.tar"
    write_image(archive, "lab/tool:1", {"bin/tool": b"x"}, {})
    record, _ = a.catalogue.images.add(a.catalogue.add(described), archive)
    other = write_record(replace(record, digest=f"sha256:{'0' * 64}"))
    remote_setup.plant({"tool/1.0/image.json": other})
    with pytest.raises(RefusedError) as refused:
        a.publish()
    assert refused.value.code == "immutable-image"
    assert b.fetch() == {}


def test_of_two_publishers_of_one_version_one_is_refused(
    two_sites: tuple[Site, Site], tmp_path: Path, remote_setup: RemoteSetup
) -> None:
    sites = two_sites
    for site in sites:
        site.catalogue.add(raw(description=f"By {site.folder.name}."))

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(publish_outcome, sites))
    if not admits_one_writer(remote_setup):
        assert "published" in outcomes  # both get the error, if one is as slow as on a busy machine
        return
    assert sorted(outcomes) == ["immutable-version", "published"]
    winner = sites[outcomes.index("published")]
    c = remote_setup.site(tmp_path / "c")
    assert c.fetch() == {"tool@1.0": "fetched"}
    assert c.catalogue.find("tool") == winner.catalogue.find("tool")


def test_of_two_concurrent_uploads_of_one_version_one_is_refused(
    two_sites: tuple[Site, Site], remote_setup: RemoteSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    if admits_one_writer(remote_setup):
        return
    send, both = Requests.request, Barrier(2)

    def send_at_once(self: Requests, method: str, key: bytes = b"", **more: Any) -> Response:
        """Send both requests, as if both arrived between the server's check and its write."""
        at_once = method == "PUT" and key.endswith(f"tool/1.0/{PUBLISHED}".encode())
        if not at_once:
            return send(self, method, key, **more)
        both.wait(60)
        more.pop("headers", None)
        response = send(self, method, key, **more)
        both.wait(60)
        return response

    monkeypatch.setattr(Requests, "request", send_at_once)
    for site in two_sites:
        site.catalogue.add(raw(description=f"By {site.folder.name}."))
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(publish_outcome, two_sites))
    assert sorted(outcomes) == ["immutable-version", "published"]


def publish_outcome(site: Site) -> str:
    """Publish from the site; return the outcome of the version, or the error code."""
    try:
        return site.publish()["tool@1.0"]
    except RefusedError as refused:
        return refused.code


def admits_one_writer(remote_setup: RemoteSetup) -> bool:
    """Return whether only one of two concurrent first uploads succeeds; a bucket without conditional writes
    (Swift) accepts both."""
    store = remote_setup.subject.open(FOLDER) if remote_setup.subject is not None else None
    return not isinstance(store, S3Store) or store.probe().locks


class Counted:
    """Count the uploads and downloads of a remote's small files."""

    def __init__(self, files: single_files.SmallFiles) -> None:
        self._files = files
        self.read_bytes: list[int] = []
        self.created: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read(self, entries: Any) -> Iterator[bytes]:
        for content in self._files.read(entries):
            self.read_bytes.append(len(content))
            yield content

    def create(self, contents: dict[bytes, bytes]) -> dict[bytes, bytes]:
        self.created += [len(content) for content in contents.values()]
        return self._files.create(contents)


def test_publishing_transfers_only_new_versions(
    remote_setup: RemoteSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote_setup.subject is None:
        return  # test_exchange.py counts git objects
    counted: list[Counted] = []

    def open_counted(*words: Any, **more: Any) -> Counted:
        counted.append(Counted(single_files.open_small_files(*words, **more)))
        return counted[-1]

    monkeypatch.setattr("hibali_plugins.exchange.site_remotes.open_small_files", open_counted)
    a, b = remote_setup.site(tmp_path / "a"), remote_setup.site(tmp_path / "b")
    for number in range(12):
        a.catalogue.add(raw(f"tool-{number}", description=os.urandom(500).hex()))
    a.publish()
    b.fetch()
    new = a.catalogue.add(raw("new"))
    for each in counted:
        each.read_bytes, each.created = [], []
    assert a.publish("new") == {"new@1.0": "published"}
    assert sum(outcome == "fetched" for outcome in b.fetch().values()) == 1
    published, fetched = counted
    assert (len(published.created), published.read_bytes) == (2, [])
    assert (sum(len(new.raw) == size for size in fetched.read_bytes), len(fetched.read_bytes)) == (1, 2)
    assert fetched.created == []


@pytest.mark.heavy
def test_an_unreachable_remote_exits_5_and_a_denied_one_4(remote_setup: RemoteSetup) -> None:
    subject = remote_setup.subject
    if subject is None or subject.backend.word in {"local", "s3", "webdav"}:
        return  # see the next test, and tests/contracts/test_store_faults.py
    unreachable, denied = subject.unreachable(), subject.denied()
    assert unreachable is not None
    assert denied is not None
    for location, kind in ((unreachable, TryLaterError), (denied, AccessError)):
        remote = SiteRemote(location)
        with pytest.raises(kind):
            remote.take_snapshot().offers()
        remote.close()


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_one_new_pipeline_of_two_thousand_in_a_bucket_is_transferred_alone(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count requests and bytes: five pages of a listing, and the files of that one version."""
    for subject in subjects("s3", request, tmp_path, monkeypatch):
        remote_setup = _setup_at_site(subject)
        names = [f"tool-{number}" for number in range(2000)]
        pages = -(-2 * len(names) // subject.page)
        digests = {name: read_descriptor(raw(name), name, name).digest for name in names}
        remote_setup.plant({f"{name}/1.0/descriptor.json": raw(name) for name in names})
        remote_setup.plant(
            {f"{name}/1.0/{PUBLISHED}": json.dumps({"digest": digests[name]}).encode() for name in names}
        )
        a, b = remote_setup.site(tmp_path / "a"), remote_setup.site(tmp_path / "b")
        new = a.catalogue.add(raw("new"))
        sent = watch_requests(monkeypatch)
        assert a.publish() == {"new@1.0": "published"}
        assert sorted(method for method, _, size in sent if size) == ["PUT", "PUT"]
        assert all("list-type" in url for method, url, _ in sent if method == "GET")
        assert sum(size for _, _, size in sent) < len(new.raw) + 1000
        sent.clear()
        assert b.fetch("new") == {"new@1.0": "fetched"}
        assert sum("list-type" not in url for _, url, _ in sent) == 2
        assert len(sent) <= 2 + pages + 1
        for remote in remote_setup.opened:
            remote.close()  # type: ignore[attr-defined]


def watch_requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Record method, address and body size of every further request to an object store, except server
    probes."""
    sent: list[tuple[str, str, int]] = []
    send = Requests._send

    def watched(requests: Requests, method: str, url: str, headers: Any, body: Any, *more: Any) -> Response:
        if "/.hibali/probe/" not in url and "probe" not in url:
            sent.append((method, url, len(body)))
        return send(requests, method, url, headers, body, *more)

    monkeypatch.setattr(Requests, "_send", watched)
    return sent


def test_a_missing_remote_is_reported(remote_setup: RemoteSetup, tmp_path: Path) -> None:
    a = remote_setup.site(tmp_path / "a")
    a.catalogue.add(raw())
    if isinstance(a.remote, GitRemote):
        if not remote_setup.url.startswith("ria+"):
            shutil.rmtree(remote_setup.url)
            with pytest.raises(NotFoundError):
                a.publish()
        return
    if isinstance(a.remote, FolderRemote):
        shutil.rmtree(remote_setup.url)
        with pytest.raises(TryLaterError):
            a.publish()
        return
    assert remote_setup.subject is not None
    remote = SiteRemote(remote_setup.subject.location("elsewhere"))
    if remote_setup.subject.backend.holds_folders:
        with pytest.raises(NotFoundError, match="does not exist"):
            remote.take_snapshot().offers()
    else:
        assert remote.take_snapshot().offers() == {}
    remote.close()


def test_an_existing_remote_is_not_created_again(remote_setup: RemoteSetup, tmp_path: Path) -> None:
    """A store whose filesystem is not mounted now must not be created again."""
    if not remote_setup.url.startswith("ria+"):
        return
    a = remote_setup.site(tmp_path / "a")
    a.catalogue.add(raw())
    a.publish()
    (tmp_path / "store").rename(tmp_path / "unmounted")
    with pytest.raises(NotFoundError):
        a.publish()
    assert not (tmp_path / "store").exists()
