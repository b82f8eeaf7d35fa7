"""Test opening paths without following symlinks of other accounts, and detecting paths that leave their root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transfers.agent.protocol import RefusedError
from transfers.agent.safe_path import OpenedFolder, Roots

NEIGHBOUR = 65533

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a symlink to another account")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a root that contains a folder, and a folder outside."""
    (tmp_path / "root" / "data" / "deep").mkdir(parents=True)
    (tmp_path / "beside").mkdir()
    return tmp_path / "root"


def opened(roots: Roots, path: Path, *, make: bool = False) -> tuple[OpenedFolder, str]:
    """Open a folder; return it and its path."""
    place = roots.open(os.fsencode(path), make)
    try:
        return place, str(Path(f"/proc/self/fd/{place.descriptor}").readlink())
    finally:
        os.close(place.descriptor)


@pytest.mark.parametrize(
    ("target", "leads_to", "inside"),
    [
        ("data/deep", "root/data/deep", True),
        ("../root/./data//deep/../deep", "root/data/deep", True),
        ("{root}/data/deep", "root/data/deep", True),
        ("other", "root/data/deep", True),
        ("..", "", False),
        ("../beside", "beside", False),
        ("{root}/../beside", "beside", False),
        ("/", "/", False),
    ],
)
def test_follow_own_symlinks_and_note_if_they_leave_the_root(
    root: Path, target: str, leads_to: str, inside: bool
) -> None:
    (root / "other").symlink_to("data/deep")
    (root / "link").symlink_to(target.format(root=root))
    place, path = opened(Roots([os.fsencode(root)]), root / "link")
    assert (path, place.inside, place.foreign) == (os.path.normpath(root.parent / leads_to), inside, None)


def test_root_may_be_a_symlink(root: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").symlink_to(root)
    (root / "back").symlink_to(root / "data")
    roots = Roots([os.fsencode(tmp_path / "scratch")])
    place, path = opened(roots, tmp_path / "scratch" / "back")
    assert (path, place.inside) == (str(root / "data"), True)


def test_path_must_stay_in_innermost_root(root: Path, tmp_path: Path) -> None:
    (root / "work").symlink_to(tmp_path / "beside")
    inner = os.fsencode(root / "work")
    assert opened(Roots([os.fsencode(root)]), root / "work")[0].inside is False
    assert opened(Roots([os.fsencode(root), inner]), root / "work")[0].inside is True


@needs_root
def test_foreign_symlink_is_refused_below_a_root_and_reported_elsewhere(root: Path, tmp_path: Path) -> None:
    link = root / "link"
    link.symlink_to("data")
    os.lchown(link, NEIGHBOUR, -1)
    for roots in ([root], [root, link], [tmp_path, link / "deep"]):
        with pytest.raises(RefusedError, match=f"uid {NEIGHBOUR}"):
            opened(Roots(map(os.fsencode, roots)), link / "deep")
    for roots in ([], [link]):  # configured roots are trusted
        place, path = opened(Roots(map(os.fsencode, roots)), link / "deep")
        assert path == str(root / "data" / "deep")
        assert (place.foreign is None) == bool(roots)
        assert place.inside


def test_missing_folders_are_not_created_through_symlinks(root: Path) -> None:
    roots = Roots([os.fsencode(root / "not" / "yet")])
    assert opened(roots, root / "not" / "yet" / "there", make=True)[1] == str(root / "not/yet/there")
    (root / "dangling").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        opened(Roots([os.fsencode(root)]), root / "dangling" / "sub", make=True)
    assert not (root / "nowhere").exists()


def test_open_error_names_the_path(root: Path) -> None:
    roots = Roots([os.fsencode(root)])
    (root / "file").write_bytes(b"1")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    for name, error in (
        ("file", NotADirectoryError),
        ("pipe", NotADirectoryError),
        ("gone", FileNotFoundError),
    ):
        with pytest.raises(error) as caught:
            opened(roots, root / name)
        assert caught.value.filename == os.fsencode(root / name)
    with pytest.raises(OSError, match="Too many levels"):
        opened(roots, root / "loop")
