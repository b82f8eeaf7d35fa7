"""Test fetching images of pipelines from an image store: verified, resumed, and by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hibali.errors import IncompleteError, NotFoundError, RefusedError, TryLaterError
from hibali_plugins.exchange.exchange import FolderImageStore, image_path
from registry.catalogue import Catalogue
from registry.images.record import ImageRecord
from registry.pipeline import Pipeline
from tests.unit.registry.images.test_images import described, make_image, stored


@pytest.fixture
def image_store(tmp_path: Path, catalogue: Catalogue, tool: Pipeline, archive: Path) -> FolderImageStore:
    """Return an image store with the image of `tool`, whose local content was removed."""
    (tmp_path / "lab").mkdir()
    image_store = FolderImageStore(tmp_path / "lab" / ".images")
    record, _ = catalogue.images.add(tool, archive)
    assert image_store.present([record]) == set()
    image_store.put(record, catalogue.image_file(tool))
    assert image_store.present([record]) == {record.digest}
    assert catalogue.images.drop(tool) == record
    return image_store


def stored_file(image_store: FolderImageStore, record: ImageRecord) -> Path:
    return image_store._folder / image_path(record)


def test_image_content_is_fetched_on_request(
    catalogue: Catalogue, tool: Pipeline, image_store: FolderImageStore, archive: Path
) -> None:
    with pytest.raises(NotFoundError) as missing:
        catalogue.image_file(tool)
    assert missing.value.code == "image-not-here"
    assert "image get tool@1.0 --from" in missing.value.hint
    record, change = catalogue.images.receive(tool, image_store.get, "lab")
    assert change == "added"
    assert catalogue.image_file(tool).read_bytes() == archive.read_bytes()
    assert catalogue.images.receive(tool, image_store.get, "lab") == (record, "same")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda raw: raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:],
    "cut": lambda raw: raw[:-1],
    "longer": lambda raw: raw + b"x",
}


@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(each, marks=pytest.mark.heavy) for each in ("cut", "longer"))]
)
def test_tampered_image_content_is_not_stored(
    catalogue: Catalogue,
    tool: Pipeline,
    image_store: FolderImageStore,
    archive: Path,
    damage: str,
    state: Path,
) -> None:
    record = catalogue.images.require(tool)
    stored_file(image_store, record).write_bytes(DAMAGES[damage](archive.read_bytes()))
    before = stored(state)
    with pytest.raises(RefusedError) as refused:
        catalogue.images.receive(tool, image_store.get, "lab")
    assert refused.value.code == "image-tampered"
    assert stored(state) == before
    with pytest.raises(NotFoundError):
        catalogue.image_file(tool)
    image_store.put(record, archive)
    assert catalogue.images.receive(tool, image_store.get, "lab")[1] == "added"


def test_missing_or_hostile_image_content_is_refused(
    catalogue: Catalogue, tool: Pipeline, image_store: FolderImageStore
) -> None:
    record = catalogue.images.require(tool)
    place = stored_file(image_store, record)
    place.unlink()
    with pytest.raises(NotFoundError, match="does not have"):
        catalogue.images.receive(tool, image_store.get, "lab")
    os.mkfifo(place)
    with pytest.raises(RefusedError):
        catalogue.images.receive(tool, image_store.get, "lab")
    assert image_store.present([record]) == set()
    place.unlink()
    place.symlink_to("/dev/zero")
    with pytest.raises(IncompleteError):
        catalogue.images.receive(tool, image_store.get, "lab")


@pytest.mark.parametrize("begun", ["right", "wrong", pytest.param("too long", marks=pytest.mark.heavy)])
def test_an_interrupted_fetch_resumes(
    catalogue: Catalogue,
    tool: Pipeline,
    image_store: FolderImageStore,
    archive: Path,
    begun: str,
    state: Path,
) -> None:
    record = catalogue.images.require(tool)
    content = archive.read_bytes()
    work = state / "images" / record.hex / "work"
    work.mkdir(mode=0o700)
    left = {"right": content[:100_000], "wrong": b"x" * 100_000, "too long": content * 2}[begun]
    (work / "content.part").write_bytes(left)
    assert catalogue.images.receive(tool, image_store.get, "lab")[1] == "added"
    assert catalogue.image_file(tool).read_bytes() == content
    assert not work.exists()


def test_an_archive_that_does_not_match_its_record_is_not_stored(
    catalogue: Catalogue, tool: Pipeline, image_store: FolderImageStore
) -> None:
    """The record is wrong in a field that no digest covers."""
    second = catalogue.add(described("2.0"))
    record = catalogue.images.require(tool)
    lie = ImageRecord(record.digest, record.size, record.format, f"sha256:{'1' * 64}", record.names)
    catalogue.images.add_record(second, lie)
    with pytest.raises(RefusedError, match="the record describes"):
        catalogue.images.receive(second, image_store.get, "lab")
    with pytest.raises(NotFoundError):
        catalogue.image_file(second)


def test_a_concurrent_transfer_of_one_image_is_refused(
    catalogue: Catalogue, tool: Pipeline, image_store: FolderImageStore, state: Path
) -> None:
    def meanwhile(record: ImageRecord, target: Path) -> None:
        with pytest.raises(TryLaterError) as busy:
            Catalogue(state, history=True).images.receive(tool, image_store.get, "lab")
        assert busy.value.code == "locked"
        image_store.get(record, target)

    assert catalogue.images.receive(tool, meanwhile, "lab")[1] == "added"


def test_unusable_image_stores_are_refused(
    catalogue: Catalogue, tool: Pipeline, archive: Path, tmp_path: Path
) -> None:
    record, _ = catalogue.images.add(tool, archive)
    gone = FolderImageStore(tmp_path / "unmounted" / ".images")
    assert gone.present([record]) == set()
    with pytest.raises(TryLaterError):
        gone.put(record, archive)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotFoundError):
        FolderImageStore(tmp_path / "file").get(record, tmp_path / "x")
    other = make_image(tmp_path / "other.tar")
    (tmp_path / "store").mkdir()
    image_store = FolderImageStore(tmp_path / "store")
    with pytest.raises(IncompleteError, match="damaged"):
        image_store.put(record, other)
    assert [each for each in (tmp_path / "store").rglob("*") if each.is_file()] == []
