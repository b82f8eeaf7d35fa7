"""Test converting a pinned image archive at a site, by one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hibali.config.model import SchedulerSettings, Site
from hibali.errors import IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from registry.images.archive import read_archive
from registry.images.record import ImageRecord
from runs.containers.apptainer import Apptainer
from runs.images import SiteImages, find_image, open_images
from runs.stage import Synchroniser
from tests.properties.descriptors import make_input, make_tool
from tests.services.image import write_image
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_host

# As apptainer-build(1): the result, then the source of the image; here the archive itself is the "SIF".
APPTAINER = """#!/bin/sh
[ "$1 $2" = "build --disable-cache" ] || exit 2
[ -d "$APPTAINER_TMPDIR" ] || exit 3
cp "${4#docker-archive:}" "$3"
"""


@dataclass
class Bench:
    """A site on this machine whose runtime is found through its prologue, and an archive."""

    folder: Path
    host: RemoteHost
    archive: Path
    record: ImageRecord

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "apptainer"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def images(self, runtime: Apptainer | None = None) -> SiteImages:
        prologue = (f"PATH={self.program.parent}:$PATH", "echo chatter", "export PATH")
        scheduler = SchedulerSettings(prologue=prologue)
        site = Site(name="here", kind="local", work=str(self.work), scheduler=scheduler)
        return open_images(self.host, site, runtime or Apptainer("apptainer"), Synchroniser())

    def remaining_names(self) -> list[str]:
        """Return all names below the folder of the image."""
        [folder] = (self.work / "images" / "apptainer").iterdir()
        return sorted(os.fsdecode(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def bench(hibali_home: object, tmp_path: Path) -> Iterator[Bench]:
    del hibali_home
    archive = tmp_path / "image.tar"
    write_image(archive, "localhost/a:1", {"bin/tool": b"1"}, {})
    host = open_host(Site(name="here", kind="local"))
    made = Bench(tmp_path, host, archive, read_archive(archive).record)
    made.program.parent.mkdir()
    made.program.write_text(APPTAINER)
    made.program.chmod(0o755)
    yield made
    host.close()


def test_an_archive_becomes_one_file_with_a_record(bench: Bench) -> None:
    staged = bench.images().stage(bench.record, lambda: bench.archive)
    assert Path(staged.path).read_bytes() == bench.archive.read_bytes()
    assert (staged.id, staged.digest, staged.fresh) == (bench.record.id, bench.record.digest, True)
    assert staged.started.image == staged.path
    assert bench.remaining_names() == ["ready", "ready/image.sif", "ready/staged.json"]
    again = bench.images().stage(bench.record, bench.program.unlink)  # type: ignore[arg-type]
    assert again == replace(staged, fresh=False)
    assert bench.images().find_id(bench.record.id) == again
    assert bench.images().find_id(f"sha256:{'0' * 64}") is None


def test_a_modified_or_purged_image_is_converted_again(bench: Bench) -> None:
    path = Path(bench.images().stage(bench.record, lambda: bench.archive).path)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)

    def same_size_and_time() -> None:
        path.write_bytes(bytes(path.stat().st_size))
        os.utime(path, ns=times)

    for damage in (
        same_size_and_time,
        lambda: os.truncate(path, 10),
        path.unlink,
        path.parent.joinpath("staged.json").unlink,
    ):
        damage()
        assert bench.images().stage(bench.record, lambda: bench.archive).fresh
        assert path.read_bytes() == bench.archive.read_bytes()


def test_a_record_of_another_archive_is_rejected(bench: Bench) -> None:
    wrong = replace(bench.record, digest=f"sha256:{'1' * 64}")
    with pytest.raises(RefusedError, match="its record has"):
        bench.images().stage(wrong, lambda: bench.archive)


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("echo it broke >&2; exit 255", IncompleteError, "it broke"),
        (
            "echo x >$3; echo 'write: No space left on device' >&2; exit 1",
            IncompleteError,
            "not enough space",
        ),
        ("echo x >$3; echo 'Disk quota exceeded' >&2; exit 1", IncompleteError, "not enough space"),
        ("kill -9 $$", TryLaterError, "signal 9"),
        ("exit 127", UsageError, "apptainer was not found at the site"),
        ("true", IncompleteError, "the conversion created no file"),
    ],
)
def test_a_failed_conversion_is_reported_and_leaves_no_files(
    bench: Bench, script: str, error: type[Exception], message: str
) -> None:
    bench.program.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(error, match=message):
        bench.images().stage(bench.record, lambda: bench.archive)
    assert bench.remaining_names() == []


def test_a_process_that_lost_the_lock_writes_nothing(bench: Bench) -> None:
    bench.program.write_text(APPTAINER + 'echo "{}" >"${3%/.hibali-*}/.hibali/lock"\n')
    with pytest.raises(TryLaterError, match="lock was lost"):
        bench.images().stage(bench.record, lambda: bench.archive)
    assert "ready" not in bench.remaining_names()


def test_an_unsupported_format_is_reported(bench: Bench) -> None:
    class Picky(Apptainer):
        formats = frozenset({"sif"})

    with pytest.raises(UsageError, match="cannot use"):
        bench.images(Picky("apptainer")).stage(bench.record, lambda: bench.archive)


def test_an_archive_that_was_accepted_before_need_not_be_named_again(bench: Bench) -> None:
    image = {"type": "docker", "image": "localhost/a:1"}
    pipeline = make_tool("t [A]", make_input("a"), container_image=image)
    runtime = Apptainer("apptainer")
    with pytest.raises(NotFoundError, match="not at the site"):
        find_image(pipeline, runtime, bench.images(), "", None)
    staged = find_image(pipeline, runtime, bench.images(), str(bench.archive), None)
    bench.archive.unlink()
    assert find_image(pipeline, runtime, bench.images(), "", None) == replace(staged, fresh=False)
    other = make_tool("u [A]", make_input("a"), container_image=image)
    with pytest.raises(NotFoundError, match="not at the site"):
        find_image(other, runtime, bench.images(), "", None)  # it was accepted for another pipeline
