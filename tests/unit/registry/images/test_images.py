"""Test images of pipelines: pinned once, stored by git-annex or as private files, fetched and dropped."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hibali import subprocesses
from hibali.errors import NotFoundError, RefusedError, UsageError
from registry.catalogue import Catalogue
from registry.images.record import ImageRecord, read_record, write_record
from registry.pipeline import Pipeline
from tests.services.image import write_image
from tests.support.annex import annex_environment
from tests.support.catalogues import git, raw

NAME = "localhost/lab/tool:1"
CONTAINER = {"type": "docker", "image": "lab/tool:1"}


def make_image(path: Path, name: str = NAME, content: bytes | None = None) -> Path:
    write_image(path, name, {"bin/tool": content or os.urandom(300_000)}, {})
    return path


def described(version: str = "1.0", **container: str) -> bytes:
    return raw(version=version, **{"container-image": {**CONTAINER, **container}})


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_image(tmp_path / "image.tar")


@pytest.fixture(params=[pytest.param("annexed", marks=pytest.mark.heavy), "plain"])
def state(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state folder of a catalogue that stores contents in one of the two ways."""
    if request.param == "annexed":
        for name, value in annex_environment(os.environ, tmp_path).items():
            monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr("registry.images.images.annex_program", lambda: None)
    return tmp_path / "state"


@pytest.fixture
def catalogue(state: Path) -> Catalogue:
    return Catalogue(state, history=True)


@pytest.fixture
def tool(catalogue: Catalogue) -> Pipeline:
    return catalogue.add(described())


def stored(state: Path) -> dict[str, bytes]:
    """Return every file of a catalogue's versions and of its image records."""
    files = [each for each in (state / "catalogue").rglob("*") if ".git" not in each.parts and each.is_file()]
    return {str(each): each.read_bytes() for each in [*files, state / "pins.jsonl"]}


def test_an_image_is_stored_under_its_digest(
    catalogue: Catalogue, tool: Pipeline, archive: Path, state: Path
) -> None:
    assert catalogue.image(tool) is None
    with pytest.raises(NotFoundError, match="has no image"):
        catalogue.image_file(tool)
    record, change = catalogue.images.add(tool, archive)
    assert change == "added"
    assert record.digest == f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    assert (record.size, record.format, record.names) == (archive.stat().st_size, "docker-archive", (NAME,))
    assert catalogue.images.add(tool, archive) == (record, "same")
    fresh = Catalogue(state)
    assert fresh.image(tool) == record
    assert fresh.image_file(tool).read_bytes() == archive.read_bytes()
    assert fresh.image_digests() == {("tool", "1.0"): record.digest}
    beside = state / "catalogue" / "tool" / "1.0" / "image.json"
    assert read_record(beside.read_bytes(), "x") == record
    assert git(state / "catalogue", "status", "--porcelain") == ""
    assert "Add the image of tool@1.0" in git(state / "catalogue", "log", "--format=%s")


@pytest.mark.parametrize("state", ["annexed", "plain"], indirect=True)
def test_git_stores_the_record_but_not_the_content(
    catalogue: Catalogue, tool: Pipeline, archive: Path, state: Path
) -> None:
    record, _ = catalogue.images.add(tool, archive)
    repository = state / "catalogue"
    assert "tool/1.0/image.json" in git(repository, "ls-files").splitlines()
    sizes = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectsize)").split()
    assert max(map(int, sizes)) < 10_000
    if catalogue.image_file(tool).is_symlink():
        link = f"tool/1.0/image/{record.hex}.tar"
        assert git(repository, "ls-files", "-s", link).startswith("120000")
        env = annex_environment(os.environ, state)
        arguments = ["git", "annex", "fsck", "--fast", "--json", "--", link]
        checked = subprocess.run(
            arguments, cwd=repository, env=env, check=True, capture_output=True, text=True
        )
        assert '"success":true' in checked.stdout
    else:
        assert (catalogue.image_file(tool).stat().st_mode & 0o777) == 0o400


def test_the_image_of_a_version_is_immutable(
    catalogue: Catalogue, tool: Pipeline, archive: Path, state: Path
) -> None:
    record, _ = catalogue.images.add(tool, archive)
    before = stored(state)
    other = make_image(state.parent / "other.tar")
    with pytest.raises(RefusedError) as refused:
        catalogue.images.add(tool, other)
    assert refused.value.code == "immutable-image"
    assert record.digest in refused.value.message
    assert hashlib.sha256(other.read_bytes()).hexdigest() in refused.value.message
    assert stored(state) == before
    catalogue.remove("tool@1.0")
    again = catalogue.add(described())
    assert catalogue.image(again) is None
    assert catalogue.images.add(again, other)[1] == "added"


@pytest.mark.parametrize("of", ["lab/tool:2", "docker.io/other/tool:1", "localhost/lab/tools:1"])
def test_an_archive_of_another_image_is_refused(
    catalogue: Catalogue, tool: Pipeline, state: Path, tmp_path: Path, of: str
) -> None:
    before = stored(state)
    with pytest.raises(RefusedError) as refused:
        catalogue.images.add(tool, make_image(tmp_path / "other.tar", of))
    assert refused.value.code == "wrong-image"
    assert "lab/tool:1" in refused.value.message
    assert of in refused.value.message
    assert stored(state) == before
    assert catalogue.image(tool) is None


def test_a_damaged_archive_changes_nothing(
    catalogue: Catalogue, tool: Pipeline, archive: Path, state: Path
) -> None:
    before = stored(state)
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match="not a complete image archive"):
        catalogue.images.add(tool, archive)
    archive.write_bytes(content.replace(b"1970", b"1971", 1))
    with pytest.raises(RefusedError, match="but its name is"):
        catalogue.images.add(tool, archive)
    assert stored(state) == before


def test_an_image_pinned_by_digest_can_have_any_name(catalogue: Catalogue, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    manifest = write_image(archive, "other/name:7", {"bin/tool": b"x"}, {})
    right = catalogue.add(described("2.0", image=f"lab/tool@{manifest}"))
    assert catalogue.images.add(right, archive)[1] == "added"
    wrong = catalogue.add(described("3.0", image=f"lab/tool@sha256:{'0' * 64}"))
    with pytest.raises(RefusedError) as refused:
        catalogue.images.add(wrong, archive)
    assert refused.value.code == "image-differs"
    assert manifest in refused.value.message


def test_two_versions_share_one_content(catalogue: Catalogue, tool: Pipeline, archive: Path) -> None:
    second = catalogue.add(described("2.0"))
    catalogue.images.add(tool, archive)
    catalogue.images.add(second, archive)
    places = {catalogue.image_file(each).resolve() for each in (tool, second)}
    assert len(places) == 1
    catalogue.remove("tool@1.0")
    assert catalogue.image_file(second).exists()
    catalogue.remove("tool@2.0")
    assert not places.pop().exists()


def test_a_modified_image_record_is_refused(
    catalogue: Catalogue, tool: Pipeline, archive: Path, state: Path
) -> None:
    record, _ = catalogue.images.add(tool, archive)
    file = state / "catalogue" / "tool" / "1.0" / "image.json"
    forged = write_record(ImageRecord(record.digest, record.size, record.format, f"sha256:{'1' * 64}"))
    file.write_bytes(forged)
    for find in (catalogue.image, catalogue.image_file):
        with pytest.raises(RefusedError, match="was changed"):
            find(tool)
    second = catalogue.add(described("2.0"))
    (state / "catalogue" / "tool" / "2.0" / "image.json").write_bytes(forged)
    with pytest.raises(RefusedError, match="not added"):
        catalogue.image(second)
    file.unlink()
    assert catalogue.image(tool) is None
    with pytest.raises(RefusedError, match="another image"):
        catalogue.images.add(tool, make_image(state.parent / "other.tar"))
    assert catalogue.images.add(tool, archive) == (record, "added")


def test_reading_starts_no_program(
    catalogue: Catalogue, tool: Pipeline, archive: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.images.add(tool, archive)
    monkeypatch.setattr(subprocesses.subprocess, "Popen", None)
    fresh = Catalogue(state)
    assert fresh.image_file(fresh.find("tool")).exists()
    assert fresh.image_digests()
    assert len(list(fresh.entries())) == 1


@pytest.mark.parametrize("state", ["annexed"], indirect=True)
@pytest.mark.parametrize("hooks_of_annex", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_git_annex_runs_no_hooks_of_the_repository(
    tool: Pipeline, archive: Path, state: Path, hooks_of_annex: bool
) -> None:
    trap = state.parent / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {state.parent}/sprung\n")
    trap.chmod(0o755)
    repository = state / "catalogue"
    for name in ("freezecontent-command", "thawcontent-command", "secure-erase-command"):
        git(repository, "config", f"annex.{name}", str(trap))
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    ours = ("freezecontent-annex", "thawcontent-annex", "pre-init-annex") if hooks_of_annex else ()
    for name in ("pre-commit", "post-checkout", "reference-transaction", *ours):
        (hooks / name).symlink_to(trap)
    fresh = Catalogue(state, history=True)
    fresh.images.add(tool, archive)
    assert fresh.image_file(tool).is_symlink() is not hooks_of_annex
    fresh.images.drop(tool)
    assert not (state.parent / "sprung").exists()


def test_missing_free_space_is_reported_before_copying(
    catalogue: Catalogue, tool: Pipeline, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    with pytest.raises(RefusedError) as refused:
        catalogue.images.add(tool, archive)
    assert refused.value.code == "no-space"
    assert catalogue.image(tool) is None


ADDING = """
import os, sys
from pathlib import Path
from registry import catalogue
from registry.images import images as contents
left = int(sys.argv[2])
if sys.argv[4] == "plain":
    contents.annex_program = lambda: None
found = catalogue.Catalogue(Path(sys.argv[1]), history=True)
tool = found.find("tool")
def guard(function):
    def guarded(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return function(*arguments, **named)
    return guarded
for name in ("replace", "rename", "fsync", "write", "symlink", "chmod", "link", "mkdir"):
    setattr(os, name, guard(getattr(os, name)))
found.images.add(tool, Path(sys.argv[3]))
"""


@pytest.mark.heavy
@pytest.mark.timeout(900)  # dozens of calls, and each runs git and git-annex a dozen times
def test_after_a_kill_at_any_change_the_same_command_completes(
    catalogue: Catalogue, tool: Pipeline, archive: Path, tmp_path: Path
) -> None:
    catalogue.images.add(tool, archive)
    way = "annexed" if catalogue.image_file(tool).is_symlink() else "plain"
    for step in range(1, 60):
        there = tmp_path / f"state-{step}"
        pipeline = Catalogue(there, history=True).add(described())
        line = [sys.executable, "-c", ADDING, str(there), str(step), str(archive), way]
        ended = subprocess.run(line, check=False, cwd=Path(__file__).parents[4]).returncode
        after = Catalogue(there, history=True)
        known = after.image(pipeline)
        if known is not None:  # content first, record last
            assert after.image_file(pipeline).read_bytes() == archive.read_bytes()
        record, _ = after.images.add(pipeline, archive)
        assert after.image(pipeline) == record
        assert after.image_file(pipeline).read_bytes() == archive.read_bytes()
        assert git(there / "catalogue", "status", "--porcelain") == ""
        assert not (there / "images" / record.hex / "work").exists()
        if ended == 0:
            assert step > 4
            return
        assert ended == 9
    pytest.fail("it never came to an end")
