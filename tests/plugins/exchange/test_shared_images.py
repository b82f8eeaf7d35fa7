"""Test sharing images of pipelines: two accounts, a bare git repository, and an image store at a site of any kind."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from registry.images.archive import read_archive
from tests.properties.descriptors import make_document, make_input
from tests.schemas import check_line
from tests.services.image import write_image
from tests.support.annex import annex_environment
from tests.support.backends import Backend, add_site, make_backend
from tests.support.catalogues import forge, git

NAME = "localhost/lab/tool:1"
REMOTE = "lab"


class Account:
    """An account with a home of its own, called as `ada("pipelines", "list", exit=0)`."""

    def __init__(self, hibali: Any, folder: Path, place: Backend, repository: Path) -> None:
        self._hibali = hibali
        self.folder = folder
        folder.mkdir()
        config = folder / "config.toml"
        add_site(config, "depot", place)
        self.env = {
            **annex_environment(place.env, folder),
            "HIBALI_STATE": str(folder / "state"),
            "HIBALI_CONFIG": str(config),
        }
        self("pipelines", "remotes", "add", REMOTE, str(repository), "--images", "depot:images", exit=0)

    def __call__(self, *words: str | Path, **more: Any) -> Any:
        return self._hibali(*words, env=self.env, cwd=self.folder, **more)

    def start(self, *words: str | Path) -> Any:
        return self._hibali.start(*words, env=self.env, cwd=self.folder)

    def image(self) -> dict[str, Any]:
        return self("pipelines", "image", "show", "tool@1.0", "--json", exit=0).last


class Labs:
    """Two accounts that share a repository, and the location of their images."""

    def __init__(self, hibali: Any, tmp_path: Path, place: Backend) -> None:
        self.place = place
        self.repository = tmp_path / "lab.git"
        git(tmp_path, "init", "-q", "--bare", "-b", "main", str(self.repository))
        self.ada = Account(hibali, tmp_path / "ada", place, self.repository)
        self.ben = Account(hibali, tmp_path / "ben", place, self.repository)
        self.archive = tmp_path / "image.tar"
        self.descriptor = tmp_path / "tool.json"
        image = {"type": "docker", "image": "lab/tool:1"}
        document = make_document("tool [A]", make_input("a"), name="tool")
        self.descriptor.write_text(json.dumps({**document, "container-image": image}))

    def add(self, size: int) -> str:
        """Add the pipeline and its image as Ada, and return the archive's digest."""
        write_image(self.archive, NAME, {"bin/tool": os.urandom(size)}, {})
        self.ada("pipelines", "add", self.descriptor, exit=0)
        added = self.ada(
            "pipelines", "image", "add", "tool", "--archive", self.archive, "--json", exit=0
        ).last
        assert added["digest"] == f"sha256:{hashlib.sha256(self.archive.read_bytes()).hexdigest()}"
        assert (added["change"], added["here"]) == ("added", True)
        return str(added["digest"])

    def publish(self) -> Any:
        return self.ada("pipelines", "publish", "--to", REMOTE, "--json", exit=0).lines[0]

    def contents(self) -> list[bytes]:
        return [content for name, content in self.place.files("images").items() if b"SHA256E" in name]


@pytest.fixture(params=["local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "s3"))])
def labs(request: pytest.FixtureRequest, hibali: Any, tmp_path: Path) -> Labs:
    return Labs(hibali, tmp_path, make_backend(request.param, tmp_path, request.getfixturevalue))


@pytest.mark.heavy
def test_an_image_is_shared_with_its_pipeline(labs: Labs) -> None:
    digest = labs.add(2_000_000)
    published = labs.publish()
    assert (published["fate"], published["image"]) == ("published", "sent")
    check_line(json.loads((labs.ada.folder / "state/catalogue/tool/1.0/image.json").read_bytes()))
    assert labs.contents() == [labs.archive.read_bytes()]
    again = labs.publish()
    assert (again["fate"], again["image"]) == ("same", "there")
    labs.ben("pipelines", "fetch", "--from", REMOTE, exit=0)
    known = labs.ben.image()
    assert (known["digest"], known["here"]) == (digest, False)
    got = labs.ben("pipelines", "image", "get", "tool", "--from", REMOTE, "--json", exit=0).last
    assert (got["digest"], got["here"], got["change"]) == (digest, True, "added")
    assert Path(labs.ben.image()["file"]).read_bytes() == labs.archive.read_bytes()
    assert labs.ben("pipelines", "list", "--json", exit=0).lines[0]["image"] == {"digest": digest}
    shown = labs.ben("pipelines", "show", "tool", "--json", exit=0).last["image"]
    assert (shown["digest"], shown["names"], shown["here"]) == (digest, [NAME], True)
    assert digest.encode() in labs.ben("pipelines", "show", "tool", exit=0).out
    labs.ben("pipelines", "image", "drop", "tool", exit=0)
    assert labs.ben.image()["here"] is False
    shutil.rmtree(labs.repository)
    labs.ben("pipelines", "image", "get", "tool", "--from", REMOTE, exit=0)


@pytest.mark.heavy
def test_a_large_image_is_shared_and_wrong_digests_are_rejected(labs: Labs, tmp_path: Path) -> None:
    digest = labs.add(50_000_000)
    labs.publish()
    labs.ben("pipelines", "fetch", "--from", REMOTE, exit=0)
    assert labs.ben.image()["digest"] == digest
    labs.ben("pipelines", "image", "get", "tool", "--from", REMOTE, exit=0)
    # other content under the same version: refused at A, and at B after it was forced into the remote
    other = tmp_path / "other.tar"
    write_image(other, NAME, {"bin/tool": b"other"}, {})
    refused = labs.ada("pipelines", "image", "add", "tool", "--archive", other, "--json", exit=8).last
    assert refused["code"] == "immutable-image"
    record = json.loads((labs.ada.folder / "state/catalogue/tool/1.0/image.json").read_bytes())
    forged = {**record, "digest": read_archive(other).record.digest}
    raw = json.dumps(forged, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    forge(labs.repository, {"tool/1.0/image.json": raw})
    refused = labs.ben("pipelines", "fetch", "--from", REMOTE, "--json", exit=8).last
    assert refused["code"] == "immutable-image"
    assert digest in refused["message"]
    assert labs.ben.image()["here"] is True


@pytest.mark.heavy
def test_tampered_images_are_not_stored(labs: Labs) -> None:
    labs.add(300_000)
    labs.publish()
    labs.ben("pipelines", "fetch", "--from", REMOTE, exit=0)
    get = ("pipelines", "image", "get", "tool", "--from", REMOTE, "--json")
    [name] = [each for each in labs.place.files("images") if b"SHA256E" in each]
    labs.place.corrupt("images", name)
    refused = labs.ben(*get, exit=8).last
    assert refused["code"] == "image-tampered"
    assert labs.ben.image()["here"] is False
    labs.place.remove("images", name)
    assert labs.ben(*get, exit=3).last["code"] == "image-not-there"
    assert labs.publish()["image"] == "sent"
    assert labs.ben(*get, exit=0).last["change"] == "added"


@pytest.mark.heavy
def test_rejected_archives(hibali: Any, tmp_path: Path) -> None:
    labs = Labs(hibali, tmp_path, make_backend("local", tmp_path, None))
    labs.ada("pipelines", "add", labs.descriptor, exit=0)
    whole = tmp_path / "whole.tar"
    write_image(whole, NAME, {"bin/tool": os.urandom(300_000)}, {})
    other = tmp_path / "other.tar"
    write_image(other, "localhost/lab/other:1", {"bin/tool": b"x"}, {})
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:-200_000])
    bomb = tmp_path / "bomb.tar.gz"
    bomb.write_bytes(gzip.compress(bytes(64 << 20)) * 8)
    for archive, code, ends in (
        (other, "wrong-image", 8),
        (cut, "bad-image-archive", 2),
        (bomb, "bad-image-archive", 2),  # zeros, which no tar archive contains at its beginning
        (tmp_path / "missing", "no-such-file", 3),
    ):
        refused = labs.ada("pipelines", "image", "add", "tool", "--archive", archive, "--json", exit=ends)
        assert refused.last["code"] == code
    assert labs.ada("pipelines", "image", "show", "tool", "--json", exit=3).last["code"] == "no-image-known"


@pytest.mark.heavy
def test_a_catalogue_at_a_site_stores_pipelines_and_images(labs: Labs) -> None:
    """Check that a catalogue at SITE:PATH stores its images in `.images` below it."""
    if labs.place.word != "s3":
        labs.ada("mkdir", "depot:pipelines", exit=0)
    for account in (labs.ada, labs.ben):
        account("pipelines", "remotes", "add", "depot", "depot:pipelines", exit=0)
    digest = labs.add(300_000)
    published = labs.ada("pipelines", "publish", "--to", "depot", "--json", exit=0).lines[0]
    assert (published["fate"], published["image"]) == ("published", "sent")
    names = [name for name in labs.place.files("pipelines") if b"SHA256E" in name]
    assert [name.partition(b"/")[0] for name in names] == [b".images"]
    assert labs.ben("pipelines", "fetch", "--from", "depot", "--json", exit=0).lines[0]["fate"] == "fetched"
    labs.ben("pipelines", "image", "get", "tool", "--from", "depot", exit=0)
    assert (labs.ben.image()["digest"], labs.ben.image()["here"]) == (digest, True)
    again = labs.ben("pipelines", "publish", "--to", "depot", "--json", exit=0).lines[0]
    assert (again["fate"], again["image"]) == ("same", "there")


@pytest.mark.heavy
def test_a_remote_without_an_image_store_is_reported(hibali: Any, tmp_path: Path) -> None:
    labs = Labs(hibali, tmp_path, make_backend("local", tmp_path, None))
    labs.ada("pipelines", "remotes", "add", "bare", str(labs.repository), exit=0)
    labs.add(1000)
    answer = labs.ada("pipelines", "publish", "--to", "bare", exit=0)
    assert b"image stays here" in answer.out
    refused = labs.ada("pipelines", "image", "get", "tool", "--from", "bare", "--json", exit=2).last
    assert refused["code"] == "no-image-store"
    refused = labs.ada("pipelines", "image", "drop", "tool", "--json", exit=8).last
    assert refused["code"] == "only-copy"
    (tmp_path / "shared").mkdir()
    labs.ada("pipelines", "remotes", "add", "shared", str(tmp_path / "shared"), exit=0)
    assert labs.ada("pipelines", "publish", "--to", "shared", "--json", exit=0).lines[0]["image"] == "sent"
    assert len(list((tmp_path / "shared" / ".images").glob("*/*/SHA256E-*.tar"))) == 1
    labs.ada("pipelines", "image", "drop", "tool", exit=0)
    missing = labs.ada("pipelines", "publish", "--to", REMOTE, "--json", exit=6)
    assert (missing.lines[0]["image"], missing.last["code"]) == ("missing", "image-not-here")
    labs.ada("pipelines", "image", "drop", "tool", "--force", exit=0)
    labs.ada("pipelines", "image", "get", "tool", "--from", "shared", exit=0)
    assert labs.ada("pipelines", "image", "show", "tool", exit=0).out.count(b"docker-archive") == 1
    digest = str(labs.ada.image()["digest"])
    assert digest[7:19].encode() in labs.ada("pipelines", "list", exit=0).out


def test_invalid_image_stores_are_reported(hibali: Any) -> None:
    for place in ("relative/folder", "-x", "a\nb:c"):
        hibali("pipelines", "remotes", "add", "lab", "/x", "--images", place, exit=2)
    hibali.home.config.write_text('version = 1\n[remotes.lab]\nurl = "/x"\nimages = "here"\n')
    hibali.home.config.chmod(0o600)
    wrong = hibali("pipelines", "remotes", "list", exit=2)
    assert b"images" in wrong.err


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["publish", "get"])
def test_after_a_kill_the_same_command_resumes(labs: Labs, word: str) -> None:
    digest = labs.add(60_000_000)
    line = ["pipelines", "publish", "--to", REMOTE]
    account = labs.ada
    if word == "get":
        labs.publish()
        account = labs.ben
        account("pipelines", "fetch", "--from", REMOTE, exit=0)
        line = ["pipelines", "image", "get", "tool", "--from", REMOTE]
    for moment in (0.7, 1.2, 1.7):  # at any point: each kill leaves another intermediate state
        process = account.start(*line)
        time.sleep(moment)
        process.kill()
        process.wait()
        if word == "publish":
            git(labs.repository, "fsck")
            named = git(labs.repository, "for-each-ref")
            assert not named or labs.contents(), "a name refers to a missing image"
    account(*line, exit=0)
    if word == "get":
        assert hashlib.sha256(Path(account.image()["file"]).read_bytes()).hexdigest() in digest
    assert labs.contents() == [labs.archive.read_bytes()]


def test_archives_of_podman_are_read(podman: Any, tmp_path: Path) -> None:
    identifier = podman.run("image", "inspect", "--format={{.Id}}", podman.image).stdout.strip()
    for kind in ("docker-archive", "oci-archive"):
        archive = tmp_path / f"{kind}.tar"
        saved = podman.run("save", f"--format={kind}", f"--output={archive}", podman.image)
        assert saved.returncode == 0, saved.stderr
        found = read_archive(archive)
        assert (found.record.format, found.record.id) == (kind, f"sha256:{identifier}")
        assert found.record.names == (podman.image,)
    assert podman.run("load", f"--input={archive}").returncode == 0
