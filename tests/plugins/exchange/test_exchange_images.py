"""Test exchanging images: contents before records, no record removed, policy checked for both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hibali.errors import HibaliError, RefusedError
from hibali_plugins.exchange.exchange import Content, FolderImageStore, image_path, publish
from hibali_plugins.exchange.remotes.base import Offer, Reference, Snapshot, Upload
from hibali_plugins.exchange.remotes.folder import FolderRemote
from hibali_plugins.exchange.remotes.git import GitRemote
from registry.images.record import ImageRecord, write_record
from registry.pipeline import Pipeline
from registry.signature import Policy, sign, signed_text
from tests.plugins.exchange.accounts import Site
from tests.services.image import write_image
from tests.support.catalogues import forge, git, raw
from tests.support.requirements import skip_or_fail

IMAGE = "tool/1.0/image.json"
DESCRIPTOR = raw(**{"container-image": {"type": "docker", "image": "lab/tool:1"}})


class Lab(Site):
    """An account whose remote has an image store."""

    def __init__(
        self, folder: Path, kind: type[GitRemote | FolderRemote], url: str, image_store: Path | None
    ) -> None:
        super().__init__(folder, kind, url, history=False)
        self.image_store = FolderImageStore(image_store) if image_store else None

    def leave(self) -> dict[str, tuple[str, Content]]:
        """Return the outcome for each version and its image."""
        done = publish(
            self.catalogue, self.remote, "lab", self.seen, self.catalogue.all(), "somebody", self.image_store
        )
        return {each.pipeline.reference: (each.result, each.content) for each in done}

    def add(self, archive: Path, descriptor: bytes = DESCRIPTOR) -> tuple[Pipeline, ImageRecord]:
        pipeline = self.catalogue.add(descriptor)
        return pipeline, self.catalogue.images.add(pipeline, archive)[0]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.images.images.annex_program", lambda: None)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_image(tmp_path / "image.tar")


def make_image(path: Path, name: str = "lab/tool:1") -> Path:
    write_image(path, name, {"bin/tool": os.urandom(200_000)}, {})
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "lab.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(folder))
    return folder


@pytest.fixture(params=["git", pytest.param("folder", marks=pytest.mark.heavy)])
def two_labs(request: pytest.FixtureRequest, tmp_path: Path, repository: Path) -> tuple[Lab, Lab]:
    (tmp_path / "lab").mkdir()
    kind = GitRemote if request.param == "git" else FolderRemote
    url = str(repository if request.param == "git" else tmp_path / "lab")
    image_store = tmp_path / "lab" / ".images"
    return Lab(tmp_path / "a", kind, url, image_store), Lab(tmp_path / "b", kind, url, image_store)


@pytest.fixture
def over_git(tmp_path: Path, repository: Path) -> tuple[Lab, Lab]:
    (tmp_path / "lab").mkdir()
    image_store = tmp_path / "lab" / ".images"
    return Lab(tmp_path / "a", GitRemote, str(repository), image_store), Lab(
        tmp_path / "b", GitRemote, str(repository), image_store
    )


def test_records_are_fetched_automatically_and_contents_on_request(
    two_labs: tuple[Lab, Lab], archive: Path
) -> None:
    a, b = two_labs
    pipeline, record = a.add(archive)
    assert a.leave() == {"tool@1.0": ("published", "sent")}
    assert b.fetch() == {"tool@1.0": "fetched"}
    assert b.catalogue.image(pipeline) == record
    assert b.catalogue.images.local_file(pipeline, record) is None
    assert b.image_store is not None
    b.catalogue.images.receive(pipeline, b.image_store.get, "lab")
    assert b.catalogue.image_file(pipeline).read_bytes() == archive.read_bytes()
    assert b.fetch() == {"tool@1.0": "same"}


def test_existing_contents_are_not_transferred(
    two_labs: tuple[Lab, Lab], archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_labs
    a.add(archive)
    a.leave()
    monkeypatch.setattr(FolderImageStore, "put", None)
    assert a.leave() == {"tool@1.0": ("same", "there")}
    b.fetch()
    assert b.leave() == {"tool@1.0": ("same", "there")}
    a.add(archive, raw(version="2.0"))
    assert a.leave()["tool@2.0"] == ("published", "there")


def test_an_image_added_later_is_fetched(two_labs: tuple[Lab, Lab], archive: Path) -> None:
    a, b = two_labs
    a.catalogue.add(DESCRIPTOR)
    assert a.leave() == {"tool@1.0": ("published", "")}
    b.fetch()
    pipeline, record = a.add(archive)
    assert a.leave() == {"tool@1.0": ("added to", "sent")}
    assert b.fetch() == {"tool@1.0": "added to"}
    assert b.catalogue.image(pipeline) == record


def test_without_an_image_store_only_the_record_is_published(
    tmp_path: Path, repository: Path, archive: Path
) -> None:
    a, b = (Lab(tmp_path / name, GitRemote, str(repository), None) for name in "ab")
    pipeline, record = a.add(archive)
    assert a.leave() == {"tool@1.0": ("published", "stays here")}
    b.fetch()
    assert b.catalogue.image(pipeline) == record
    b.image_store = FolderImageStore(tmp_path / "elsewhere")
    assert b.leave() == {"tool@1.0": ("same", "missing")}


def test_publishing_another_image_of_a_version_is_refused(
    two_labs: tuple[Lab, Lab], archive: Path, tmp_path: Path
) -> None:
    a, b = two_labs
    _, first = a.add(archive)
    a.leave()
    _, second = b.add(make_image(tmp_path / "other.tar"))
    for call in (b.leave, b.fetch):
        with pytest.raises(RefusedError) as refused:
            call()
        assert refused.value.code == "immutable-image"
        assert first.digest in refused.value.message
        assert second.digest in refused.value.message
    assert FolderImageStore(tmp_path / "lab" / ".images").present([second]) == set()


def altered(record: ImageRecord, **changes: object) -> bytes:
    return json.dumps({**json.loads(write_record(record)), **changes}, sort_keys=True, separators=(",", ":")).encode() + b"\n"  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"names": ["evil/tool:1"]}, "wrong-image"),
        ({"digest": "md5:0"}, "bad-image-record"),
        ({"more": 1}, "bad-image-record"),
        ({"names": ["x\n\x1b[2J"]}, "bad-image-record"),
    ],
)
def test_invalid_records_and_records_of_other_images_are_refused(
    over_git: tuple[Lab, Lab], repository: Path, archive: Path, changes: dict[str, object], code: str
) -> None:
    a, b = over_git
    _, record = a.add(archive)
    a.leave()
    forge(repository, {IMAGE: altered(record, **changes)})
    with pytest.raises(RefusedError) as refused:
        b.fetch()
    assert (refused.value.code, refused.value.exit) == (code, 8)
    assert b.references() == []


def test_a_known_image_cannot_change_at_the_remote(
    over_git: tuple[Lab, Lab], repository: Path, archive: Path, tmp_path: Path
) -> None:
    a, b = over_git
    pipeline, record = a.add(archive)
    a.leave()
    b.fetch()
    other = Lab(tmp_path / "c", GitRemote, str(repository), None).add(make_image(tmp_path / "c.tar"))[1]
    forge(repository, {IMAGE: write_record(other)})
    for site in (a, b):
        with pytest.raises(RefusedError) as refused:
            site.fetch()
        assert refused.value.code == "immutable-image"
        assert record.digest in refused.value.message
        assert other.digest in refused.value.message
        assert site.catalogue.image(pipeline) == record
    with pytest.raises(RefusedError):
        a.leave()


class Interrupted(Exception):  # noqa: N818  # nothing went wrong
    """The call was killed here."""


class KilledBeforePublishing:
    """A remote whose publisher is killed between the content and the pointer."""

    def __init__(self, remote: GitRemote | FolderRemote) -> None:
        self._remote = remote

    def take_snapshot(self, **how: bool) -> Snapshot:
        return KilledSnapshot(self._remote.take_snapshot(**how))


class KilledSnapshot:
    def __init__(self, look: Snapshot) -> None:
        self._snapshot = look

    def offers(self) -> Mapping[Reference, Offer]:
        return self._snapshot.offers()

    def read(self, wanted: Sequence[str]) -> list[bytes]:
        return list(self._snapshot.read(wanted))

    def publish(self, uploads: Sequence[Upload], message: str) -> bool:
        del uploads, message
        raise Interrupted


def test_after_a_kill_between_content_and_pointer_no_pointer_is_broken(
    two_labs: tuple[Lab, Lab], archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_labs
    _, record = a.add(archive)
    remote, a.remote = a.remote, KilledBeforePublishing(a.remote)  # type: ignore[arg-type,assignment]
    with pytest.raises(Interrupted):
        a.leave()
    assert b.fetch() == {}
    assert b.image_store is not None
    assert b.image_store.present([record]) == {record.digest}
    a.remote = remote
    monkeypatch.setattr(FolderImageStore, "put", None)
    assert a.leave() == {"tool@1.0": ("published", "there")}
    assert b.fetch() == {"tool@1.0": "fetched"}


def test_a_failed_image_upload_prevents_publishing(
    two_labs: tuple[Lab, Lab], archive: Path, tmp_path: Path
) -> None:
    a, b = two_labs
    a.add(archive)
    (tmp_path / "lab" / ".images").write_bytes(b"in the way")
    with pytest.raises(HibaliError):
        a.leave()
    assert b.fetch() == {}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if shutil.which("ssh-keygen") is None:
        skip_or_fail("ssh-keygen is missing")
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def test_under_the_policy_a_signature_covers_the_image(
    over_git: tuple[Lab, Lab], repository: Path, key: Path, tmp_path: Path, archive: Path
) -> None:
    a, b = over_git
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"ada@example.org {key.with_suffix('.pub').read_text()}")
    b.policy = Policy(signers, required=True, scratch=b.folder)
    pipeline = a.catalogue.add(DESCRIPTOR)
    a.catalogue.sign(pipeline, *sign(signed_text(pipeline), key, a.folder))
    a.leave()
    assert b.fetch() == {"tool@1.0": "fetched"}
    _, record = a.add(archive)
    a.leave()
    with pytest.raises(RefusedError, match="does not cover the image"):
        b.fetch()
    assert b.catalogue.image(pipeline) is None
    a.catalogue.sign(pipeline, *sign(signed_text(pipeline, record.digest), key, a.folder, record.digest))
    assert a.leave() == {"tool@1.0": ("added to", "there")}
    assert b.fetch() == {"tool@1.0": "added to"}
    assert b.catalogue.image(pipeline) == record
    assert len([each for each in b.catalogue.attachments("tool", "1.0") if each.endswith(".sig")]) == 2
    c = Lab(tmp_path / "c", GitRemote, str(repository), None)
    c.policy = Policy(signers, required=True, scratch=c.folder)
    assert c.fetch() == {"tool@1.0": "fetched"}
    other = Lab(tmp_path / "d", GitRemote, str(repository), None).add(make_image(tmp_path / "d.tar"))[1]
    forge(repository, {IMAGE: write_record(other)})
    e = Lab(tmp_path / "e", GitRemote, str(repository), None)
    e.policy = Policy(signers, required=True, scratch=e.folder)
    with pytest.raises(RefusedError) as refused:
        e.fetch()
    assert (refused.value.code, e.references()) == ("unsigned", [])


def test_contents_have_the_path_of_the_special_remote() -> None:
    record = ImageRecord(f"sha256:{'ab' * 32}", 3_000_000, "sif", f"sha256:{'ab' * 32}")
    first, second, key = image_path(record).split("/")
    assert key == f"SHA256E-s3000000--{'ab' * 32}.sif"
    assert (len(first), len(second)) == (3, 3)
