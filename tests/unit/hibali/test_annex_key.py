"""Compare keys and paths with those of the real git-annex."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from hibali.annex_key import digest_of, extension_of, key_of, place_of, size_of
from hibali.errors import UsageError
from tests.support.annex import AnnexRepository, make_repository

CONTENT = b"the bytes\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAMES = [
    "plain", "a.tar.gz", "b.nii.gz", "c.jpeg", "d.longext", "e.x.y.z", "f.a b", "g.é", "h.", "i..gz", "j.tar.longext",
    "k.a-b.gz", "l.a_b", "m.toolong.gz", "n.1234.ab.cd", ".bashrc", ".tar.gz", "..gz", "...gz", "..tar.gz", ".a..b",
    "x.gz.", "x.tar..gz", "x.tar.gz...", "x.a.b-c.d", "z.\udcff\udcfe", "q.aéé", "q.aé", "r.²", "x.tar.a-b", "-f.gz",
]  # fmt: skip
KEYS = [
    f"SHA256E-s10--{DIGEST}.tar.gz", f"SHA256E-s10-S5-C2--{DIGEST}.gz", "SHA256E-s10-S5-C2--a&b%c:d.gz",
    "URL-s3--http://ex.com/a:b&c%d", "URL--http&c%%ex.com%x", "WORM-s1-m5-S3-C1--x", "WORM-s1-m5--x-S3-C1--y",
    "GPGHMACSHA1--0d1cd3cf6ba2d9c1e0a5c4a1c5a5a2d1cb3a3a99", "MD5E-s0--d41d8cd98f00b204e9800998ecf8427e.x",
]  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> AnnexRepository:
    folder = tmp_path_factory.mktemp("annex")
    return make_repository(folder / "repository", os.environ, folder)


def test_keys_are_those_of_git_annex(repository: AnnexRepository) -> None:
    for name in NAMES:
        (repository.folder / name).write_bytes(CONTENT)
    listed = repository.run("annex", "calckey", "--backend=SHA256E", "--", *map(os.fsencode, NAMES))
    ours = [key_of(len(CONTENT), DIGEST, extension_of(name)) for name in NAMES]
    assert dict(zip(NAMES, ours, strict=True)) == dict(
        zip(NAMES, os.fsdecode(listed).splitlines(), strict=True)
    )


def test_places_are_those_of_git_annex(repository: AnnexRepository) -> None:
    output = repository.run("annex", "examinekey", "--format=${hashdirlower} ${objectpath}\n", "--", *KEYS)
    for key, line in zip(KEYS, output.decode().splitlines(), strict=True):
        folder, _, file = line.partition(" ")
        assert place_of(key) == folder + Path(file).name


@pytest.mark.parametrize(
    ("size", "digest", "extension"),
    [(-1, DIGEST, ""), (1, "abc", ""), (1, DIGEST, "gz"), (1, DIGEST, ".a/b"), (1, DIGEST, ".toolong")],
)
def test_invalid_parts_of_a_key_are_refused(size: int, digest: str, extension: str) -> None:
    with pytest.raises(UsageError):
        key_of(size, digest, extension)


@pytest.mark.parametrize("key", ["", "..", "../../etc--x", "a\nb--c", "a\0--b", "nokey", "--x", "-x--y"])
def test_invalid_keys_have_no_path(key: str) -> None:
    with pytest.raises(UsageError):
        place_of(key)


@pytest.mark.parametrize(
    ("key", "size"),
    [
        (f"SHA256E-s10--{DIGEST}-s5", 10),
        (f"SHA256E-s10-S4-C1--{DIGEST}", 4),
        (f"SHA256E-s10-S4-C3--{DIGEST}", 2),
        ("URL--http&c%%example.com%-s5-S2-C1", None),
        ("GPGHMACSHA1--0d1cd3cf6ba2d9c1", None),
    ],
)
def test_a_key_contains_the_size_of_its_content(key: str, size: int | None) -> None:
    assert size_of(key) == size


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (f"SHA256E-s10--{DIGEST}.tar.gz", DIGEST),
        (f"SHA256--{DIGEST}", DIGEST),
        (f"SHA256E-s10-S4-C3--{DIGEST}", None),
        (f"SHA256E-s10--{DIGEST[1:]}", None),
        (f"SHA512-s10--{DIGEST}", None),
    ],
)
def test_a_key_contains_the_digest_of_a_whole_content(key: str, digest: str | None) -> None:
    assert digest_of(key) == digest
