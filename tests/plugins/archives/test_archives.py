"""Test datasets of public archives by their DOI: one suite over Zenodo, Figshare, Dataverse, DANDI, OSF and OpenNeuro."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from hibali.errors import IncompleteError, NotFoundError, TryLaterError
from hibali_plugins.archives import dataverse, files, finding, settings
from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import value_in
from hibali_plugins.archives.finding import list_files
from hibali_plugins.archives.settings import Place, place_of
from tests.services.archives import ARCHIVES, Archive, Published
from tests.support.trees import read_tree
from tests.support.waiting import wait_for

MIB = 1 << 20
FILES = [
    Published("README.md", b"A dataset.\n"),
    Published("empty", b""),
    Published("sub-01/anat/T1w image.nii.gz", os.urandom(3000)),
    Published("sub-01/survey.sav", b"an SPSS table"),
    Published("sub-01/ünïcode & 100%.txt", b"names\n"),
]
WITH_SHA256 = ("dandi", "osf")


QUICK = ("zenodo", "dataverse", "openneuro")  # the most different ones


@pytest.fixture(
    params=[each if each in QUICK else pytest.param(each, marks=pytest.mark.heavy) for each in ARCHIVES]
)
def archive(request: pytest.FixtureRequest) -> Iterator[Archive]:
    double = ARCHIVES[request.param](list(FILES))
    yield double
    double.close()
    assert not double.refused


def add(hibali: Any, archive: Archive, doi: str = "", *more: str) -> Any:
    address = ("--set", f"doi.url={archive.url}", *more)
    if isinstance(archive, ARCHIVES["dataverse"]):
        address += ("--set", "doi.service=dataverse")
    return hibali("sites", "add", "there", "--doi", doi or archive.doi, *address, exit=0)


def kind_of(archive: Archive) -> str:
    return next(name for name, each in ARCHIVES.items() if isinstance(archive, each))


def tree_of(files: list[Published]) -> dict[bytes, bytes]:
    return {file.path.encode(): file.content for file in files}


def pulled(folder: Path) -> dict[bytes, bytes]:
    return {path: content for path, content in read_tree(folder).items() if isinstance(content, bytes)}


@pytest.mark.parametrize("archive", ARCHIVES, indirect=True)
def test_a_dataset_is_listed_pulled_verified_and_kept(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    add(hibali, archive)
    listed = hibali("ls", "-R", "there:", "--json", exit=0).lines
    assert {each["path"] for each in listed if each.get("type") == "file"} == {file.path for file in FILES}
    receipt = hibali("pull", "there:", tmp_path / "data", "--json", exit=0).last
    assert pulled(tmp_path / "data") == tree_of(FILES)
    assert receipt["proof_moved"] == ("recorded" if kind_of(archive) in WITH_SHA256 else "claimed")
    before = dict(archive.blobs.sent)
    assert hibali("pull", "there:", tmp_path / "data", "--json", exit=0).last["files_moved"] == 0
    assert dict(archive.blobs.sent) == before
    hibali("verify", "there:", tmp_path / "data", exit=0)
    hibali("pull", "there:sub-01/survey.sav", tmp_path / "one.sav", exit=0)
    assert (tmp_path / "one.sav").read_bytes() == b"an SPSS table"


def test_a_site_has_exactly_one_version(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    old = ("--set", 'doi.version="1.0"') if kind_of(archive) == "dataverse" else ()
    add(hibali, archive, archive.older_doi, *old)
    hibali("pull", "there:", tmp_path / "old", exit=0)
    assert pulled(tmp_path / "old") == tree_of(FILES[:1])
    if not archive.all_versions_doi:
        return
    hibali("sites", "remove", "there", exit=0)
    add(hibali, archive, archive.all_versions_doi)
    own = tomllib.loads(hibali.home.config.read_text())["sites"]["there"]["doi"]
    assert own["name"] == archive.doi
    assert own.get("version") in {None, "2.1"}


@pytest.mark.parametrize("ranges", [True, False])
def test_damage_is_found_by_the_archives_own_checksum(
    hibali: Any, archive: Archive, tmp_path: Path, *, ranges: bool
) -> None:
    archive.blobs.ranges = ranges
    add(hibali, archive)
    whole = archive.blobs.contents["2"]
    archive.blobs.contents["2"] = b"x" + whole[1:]
    failed = hibali("pull", "there:", tmp_path / "data", "--json", exit=6)
    assert FILES[2].path in str(failed.lines)
    assert not (tmp_path / "data" / FILES[2].path).exists()
    assert pulled(tmp_path / "data") == tree_of([*FILES[:2], *FILES[3:]])
    archive.blobs.contents["2"] = whole
    hibali("pull", "there:", tmp_path / "data", exit=0)
    assert pulled(tmp_path / "data") == tree_of(FILES)


def test_a_large_file_is_resumed_in_ranges(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    large = Published("large.bin", os.urandom(40 * MIB))
    archive.files.append(large)
    number = str(len(archive.files) - 1)
    archive.blobs.contents[number] = large.content
    add(hibali, archive)
    archive.blobs.held_from = 16 * MIB
    process = hibali.start("pull", "there:large.bin", tmp_path / "large.bin", "--json")
    wait_for(lambda: has_partial_bytes(tmp_path))
    process.kill()
    process.wait()
    archive.blobs.held_from = None
    assert not (tmp_path / "large.bin").exists()
    before = archive.blobs.sent[number]
    hibali("pull", "there:large.bin", tmp_path / "large.bin", exit=0)
    assert (tmp_path / "large.bin").read_bytes() == large.content
    again = archive.blobs.sent[number] - before
    # without the archive's sha256, the proof needs all bytes once more
    assert again <= (32 * MIB if kind_of(archive) in WITH_SHA256 else 40 * MIB)


def has_partial_bytes(folder: Path) -> bool:
    """Return whether a part of the file has arrived."""
    return any(path.stat().st_blocks for path in folder.glob(".hibali-*") if path.is_file())


def test_a_dataset_is_never_written_to(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    add(hibali, archive)
    (tmp_path / "a.txt").write_text("mine\n")
    assert hibali("push", tmp_path / "a.txt", "there:a.txt", "--json", exit=8).last["code"]
    assert hibali("rm", "there:README.md", "--json", exit=8).last["code"]


@pytest.mark.parametrize("path", ["../climbs", "a//b", "a/./b"])
def test_names_that_could_climb_end_the_call(
    hibali: Any, archive: Archive, tmp_path: Path, path: str
) -> None:
    add(hibali, archive)
    archive.files[0] = replace(archive.files[0], path=path)
    if kind_of(archive) in {"osf", "figshare", "dataverse"} and path != "../climbs":
        pytest.skip("its folders are joined from names")
    refused = hibali("pull", "there:", tmp_path / "data", "--json", exit=6).last
    assert refused["code"] == "listing-violation"
    assert not (tmp_path / "climbs").exists()


def test_faults_of_both_servers_are_overcome(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    add(hibali, archive)
    archive.fail("status", "GET", status=503, retry_after=0)
    archive.fail("dropped", "GET")
    archive.blobs.fail("status", "GET", status=503, retry_after=0)
    archive.blobs.fail("lost", "GET")
    hibali("pull", "there:", tmp_path / "data", exit=0)
    assert pulled(tmp_path / "data") == tree_of(FILES)


def test_a_name_of_a_file_and_a_folder_deletes_nothing(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    archive.files[0] = replace(archive.files[0], path="sub-01")
    if kind_of(archive) == "osf":
        pytest.skip("OSF refuses such names")
    add(hibali, archive)
    (tmp_path / "data/sub-01").mkdir(parents=True)
    (tmp_path / "data/sub-01/mine").write_text("mine\n")
    hibali("pull", "there:", tmp_path / "data", "--delete", exit=6)
    assert (tmp_path / "data/sub-01/mine").read_text() == "mine\n"
    assert (tmp_path / "data" / FILES[3].path).read_bytes() == FILES[3].content


def test_a_content_that_is_missing_is_one_failure(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    add(hibali, archive)
    archive.blobs.fail("status", "GET", "/blobs/2", status=404, times=9)
    failed = hibali("pull", "there:", tmp_path / "data", "--json", exit=6)
    assert FILES[2].path in str(failed.lines)
    assert pulled(tmp_path / "data") == tree_of([*FILES[:2], *FILES[3:]])


@pytest.mark.heavy
def test_a_large_file_comes_from_a_server_without_ranges(
    hibali: Any, archive: Archive, tmp_path: Path
) -> None:
    large = Published("large.bin", os.urandom(20 * MIB))
    archive.files.append(large)
    archive.blobs.contents[str(len(archive.files) - 1)] = large.content
    archive.blobs.ranges = False
    add(hibali, archive)
    hibali("pull", "there:large.bin", tmp_path / "large.bin", exit=0)
    assert (tmp_path / "large.bin").read_bytes() == large.content


@pytest.mark.parametrize("address", ["https://[x/", "https://10.0.0.1/x", "https://localhost/x", "ftp://a/b"])
def test_a_redirect_to_an_address_that_is_not_public_is_not_followed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(archive.blobs, "address", lambda number: address)  # noqa: ARG005
    client = ArchiveClient(archive.url, "there")
    client._addresses.is_local = False
    monkeypatch.setattr(
        client._addresses,
        "allows",
        lambda found: found.startswith(("http://127", "https://")) and "[" not in found,
    )
    for file in list_files(client, place(archive)).files.values():
        if "/objects/" in file.address:  # OpenNeuro sends it itself
            continue
        with pytest.raises(IncompleteError, match="does not contact"):
            client.content(file.address, 0, None, file.size)
    client.close()


def place(archive: Archive) -> Place:
    known = place_of(archive.doi) or Place("dataverse", "", f"doi:{archive.doi}")
    return known._replace(url=archive.url)


def test_a_restricted_file_is_a_failure_unless_it_is_excluded(hibali: Any, tmp_path: Path) -> None:
    archive = ARCHIVES["dataverse"]([*FILES[:3], replace(FILES[3], restricted=True)])
    try:
        add(hibali, archive)
        failed = hibali("pull", "there:", tmp_path / "data", "--delete", "--json", exit=6)
        assert FILES[3].path in str(failed.lines)
        (tmp_path / "data/mine").touch()
        hibali("pull", "there:", tmp_path / "data", "--delete", "--exclude", "*.sav", exit=0)
        assert pulled(tmp_path / "data") == tree_of(FILES[:3])
        hibali("pull", "there:", tmp_path / "data", "--exclude", "*.md", exit=6)
    finally:
        archive.close()


def test_all_forms_in_which_zenodo_describes_files_are_read() -> None:
    archive = ARCHIVES["zenodo"]([Published("lexibank/v1.1.zip", b"release")])
    client = ArchiveClient(archive.url, "there")
    try:
        first = list_files(client, place(archive))
        for form in ("deposition", "rdm"):
            archive.form = form
            assert first == list_files(client, place(archive))
        [file] = first.files.values()
        assert file.checksum == f"md5:{archive.files[0].md5}"
        assert client.content(file.address, 0, None, file.size) == (b"release", 7)
    finally:
        client.close()
        archive.close()


def test_a_dataset_of_dataverse_is_listed_in_pages_whatever_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataverse, "_PAGE", 2)
    archive = ARCHIVES["dataverse"]([Published(f"sub-{n}/events.tsv", b"x" * n) for n in range(5)])
    client = ArchiveClient(archive.url, "there")
    try:
        listed = list_files(client, place(archive))
        assert sorted(listed.files) == sorted(tree_of(archive.files))
        monkeypatch.setattr(dataverse, "MOST_FILES", 4)
        with pytest.raises(TryLaterError, match="states 5 files"):
            list_files(client, place(archive))
        archive.lists_pages = False
        assert list_files(client, place(archive)) == listed
    finally:
        client.close()
        archive.close()


@pytest.mark.parametrize(
    ("service", "names"),
    [
        ("dataverse", ("totalCount",)),
        ("dandi", ("count",)),
        ("dandi", ("next",)),
        ("osf", ("links", "next")),
        ("zenodo", ("files", "count")),
    ],
)
def test_a_listing_that_does_not_say_that_it_is_whole_is_refused(
    monkeypatch: pytest.MonkeyPatch, service: str, names: tuple[str, ...]
) -> None:
    """Else `--delete` would remove what is on the pages that were not read."""
    archive = ARCHIVES[service](list(FILES))
    archive.form = "rdm"  # type: ignore[attr-defined]  # of Zenodo
    client = ArchiveClient(archive.url, "there")
    answered = ArchiveClient.record

    def without(*asked: Any, **query: Any) -> dict[str, Any]:
        found = answered(*asked, **query)
        around = value_in(found, *names[:-1])
        if isinstance(around, dict):
            around.pop(names[-1], None)
        return found

    try:
        list_files(client, place(archive))
        monkeypatch.setattr(ArchiveClient, "record", without)
        with pytest.raises(TryLaterError) as refused:
            list_files(client, place(archive))
        assert refused.value.code == "bad-answer"
    finally:
        client.close()
        archive.close()


def test_a_dataset_of_figshare_with_too_many_files_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 3)
    archive = ARCHIVES["figshare"](list(FILES))
    client = ArchiveClient(archive.url, "there")
    try:
        with pytest.raises(IncompleteError, match="more than 3 files"):
            list_files(client, place(archive))
    finally:
        client.close()
        archive.close()


@pytest.mark.parametrize("algorithm", ["SHA-1", "SHA-512", "SHA-256"])
def test_other_checksums_of_dataverse_prove_a_file(hibali: Any, tmp_path: Path, algorithm: str) -> None:
    archive = ARCHIVES["dataverse"](list(FILES))
    archive.algorithm = algorithm
    try:
        add(hibali, archive)
        whole = archive.blobs.contents["2"]
        archive.blobs.contents["2"] = b"x" + whole[1:]
        failed = hibali("pull", "there:", tmp_path / "data", "--json", exit=6)
        assert FILES[2].path in str(failed.lines)
        archive.blobs.contents["2"] = whole
        proof = hibali("pull", "there:", tmp_path / "data", "--json", exit=0).last["proof_moved"]
        assert proof == ("recorded" if algorithm == "SHA-256" else "claimed")
    finally:
        archive.close()


def test_two_files_of_a_name_are_left_out(hibali: Any, tmp_path: Path) -> None:
    archive = ARCHIVES["figshare"]([*FILES, Published("README.md", b"Another one.\n")])
    try:
        add(hibali, archive)
        failed = hibali("pull", "there:", tmp_path / "data", "--json", exit=6)
        assert "several files of this name" in str(failed.lines)
        assert pulled(tmp_path / "data") == tree_of(FILES[1:])
    finally:
        archive.close()


def test_a_firewall_before_the_archive_asks_for_another_try() -> None:
    archive = ARCHIVES["zenodo"](list(FILES))
    client = ArchiveClient(archive.url, "there")
    try:
        [file, *_] = list_files(client, place(archive)).files.values()
        archive.blobs.fail("status", "GET", status=202)
        with pytest.raises(TryLaterError, match="firewall"):
            client.content(file.address, 0, file.size, file.size)
        archive.fail("status", "GET", status=202)
        with pytest.raises(TryLaterError, match="firewall"):
            list_files(client, place(archive))
    finally:
        client.close()
        archive.close()


@pytest.mark.parametrize("name", ["a\ud800", "\udc80"])
def test_a_name_that_is_no_text_ends_the_call(hibali: Any, tmp_path: Path, name: str) -> None:
    archive = ARCHIVES["zenodo"](list(FILES))
    try:
        add(hibali, archive)
        archive.files[0] = replace(archive.files[0], path=name)
        assert (
            hibali("pull", "there:", tmp_path / "data", "--json", exit=6).last["code"] == "listing-violation"
        )
    finally:
        archive.close()


def test_a_dataset_without_files_is_no_success(hibali: Any, archive: Archive, tmp_path: Path) -> None:
    add(hibali, archive)
    archive.files.clear()
    assert hibali("pull", "there:", tmp_path / "data", "--json", exit=4).last["code"] == "denied"


def test_a_doi_that_the_archive_does_not_have_is_said(hibali: Any) -> None:
    archive = ARCHIVES["zenodo"](list(FILES))
    try:
        add(hibali, archive, "10.5281/zenodo.77", "--no-check")
        refused = hibali("ls", "there:", "--json", exit=3).last
        assert (refused["code"], refused["hint"]) == (
            "no-such-dataset",
            "Check the DOI: hibali sites show there",
        )
    finally:
        archive.close()


@pytest.mark.parametrize("foreign", ["", "10.1000/182"])
def test_a_doi_of_all_versions_is_refused_with_the_newest_one(hibali: Any, foreign: str) -> None:
    archive = ARCHIVES["zenodo"](list(FILES))
    archive.foreign = foreign  # type: ignore[attr-defined]
    try:
        add(hibali, archive, archive.all_versions_doi, "--no-check")
        refused = hibali("ls", "there:", "--json", exit=2).last
        assert refused["code"] == "not-one-version"
        assert archive.doi in refused["message"]
    finally:
        archive.close()


@pytest.fixture
def known(hibali: Any, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Return an archive to which its own DOIs lead, also in the API of this process."""
    for name, value in hibali.env.items():
        monkeypatch.setenv(name, value)
    rows = [
        (pattern, each, archive.url if each == kind_of(archive) else url)
        for pattern, each, url in settings._KNOWN
    ]
    monkeypatch.setattr(settings, "_KNOWN", tuple(rows))
    monkeypatch.setattr(finding, "_resolve", lambda *_: ("dataverse", archive.url))
    return archive


def test_a_dataset_is_pulled_by_its_doi_without_a_site(known: Archive, tmp_path: Path) -> None:
    doi = f"doi:{known.doi}" + ("@2.1" if kind_of(known) == "dataverse" else "")
    assert api.pull(doi, tmp_path / "data").files_moved == len(FILES)
    assert pulled(tmp_path / "data") == tree_of(FILES)
    assert api.verify(doi, tmp_path / "data").files_kept == len(FILES)
    assert {entry.name for entry in api.ls(f"{doi}/sub-01")} == {"anat", "survey.sav", "ünïcode & 100%.txt"}
    with pytest.raises(api.HibaliError) as refused:
        api.push(tmp_path / "data", doi)
    assert refused.value.code == "read-only-site"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("archive", "doi"),
    [("zenodo", "10.5281/zenodo.77"), ("openneuro", "10.18112/openneuro.ds000099.v1.0.0")],
    indirect=["archive"],
)
def test_the_hint_of_a_location_names_no_site(known: Archive, doi: str) -> None:
    del known
    with pytest.raises(api.HibaliError) as refused:
        api.ls(f"doi:{doi}")
    assert (refused.value.code, refused.value.hint) == ("no-such-dataset", f"Check the DOI: doi:{doi}")


def test_a_doi_of_all_versions_names_the_one_to_type(known: Archive, tmp_path: Path) -> None:
    if kind_of(known) == "osf":
        pytest.skip("it has no versions")
    with pytest.raises(api.HibaliError) as refused:
        api.pull(f"doi:{known.all_versions_doi}", tmp_path / "data")
    assert refused.value.code == "not-one-version"
    exact = str(refused.value.hint).rpartition(" ")[2]
    assert api.pull(exact, tmp_path / "data").files_moved == len(FILES)


PAGES = {
    "10.48420/11.v2": ("https://figshare.manchester.ac.uk/articles/dataset/Scans/11/2", "figshare"),
    "10.48420/11": ("https://figshare.manchester.ac.uk/articles/dataset/Scans/12", ""),
    "10.70122/FK2/ABC": (
        "https://demo.example.org/dataset.xhtml?persistentId=doi:10.70122/FK2/ABC",
        "dataverse",
    ),
    "10.1000/182": ("https://journal.example.org/articles", ""),
    "10.70122/X": ("http://demo.example.org/dataset.xhtml?persistentId=doi:10.70122/X", ""),
}


@pytest.mark.parametrize("doi", PAGES)
def test_the_page_of_a_doi_names_its_archive(monkeypatch: pytest.MonkeyPatch, doi: str) -> None:
    page, service = PAGES[doi]
    answer = {"values": [{"type": "URL", "data": {"format": "string", "value": page}}]}
    monkeypatch.setattr(ArchiveClient, "record", lambda *_, **__: answer)
    monkeypatch.setattr(finding, "is_public", lambda _: True)
    own = settings.ArchiveSettings(name=doi)
    if not service:
        with pytest.raises(NotFoundError, match="no archive that hibali knows") as unknown:
            finding.resolve(own, f"doi:{doi}")
        assert f"hibali sites add NAME --doi {doi} --set" in str(unknown.value.hint)
        return
    found = finding.resolve(own, "there").place
    version = "2" if service == "figshare" else ""
    assert (found.service, found.version) == (service, version)
    assert found.url == ("https://api.figshare.com" if service == "figshare" else "https://demo.example.org")


@pytest.mark.parametrize("text", ["doi:", "doi:zenodo.11", "doi:10.70122/FK2/ABC@x"])
def test_a_location_with_another_doi_is_refused(hibali: Any, text: str) -> None:
    assert hibali("ls", text, "--json", exit=2).last["code"] == "bad-location"


def test_the_id_of_a_git_blob_finds_damage(hibali: Any, tmp_path: Path) -> None:
    large = Published("large.tsv", os.urandom(20 * MIB))  # it is read in several ranges
    archive = ARCHIVES["openneuro"]([*FILES, large])
    try:
        add(hibali, archive)
        hibali("pull", "there:", tmp_path / "whole", exit=0)
        for number in ("0", "5"):
            archive.blobs.contents[number] = b"x" + archive.blobs.contents[number][1:]
        failed = hibali("pull", "there:", tmp_path / "data", "--json", exit=6)
        assert {each["path"] for each in failed.lines if each.get("code") == "corrupt"} == {
            "README.md",
            "large.tsv",
        }
        assert pulled(tmp_path / "data") == tree_of(FILES[1:])
    finally:
        archive.close()


@pytest.mark.parametrize(
    ("message", "code", "status"),
    [
        ("You do not have access to read this dataset.", "denied", 4),
        ("The operation was aborted due to timeout", "", 0),
    ],
)
def test_errors_of_graphql_have_a_meaning(
    hibali: Any, monkeypatch: pytest.MonkeyPatch, message: str, code: str, status: int
) -> None:
    archive = ARCHIVES["openneuro"](list(FILES))
    try:
        add(hibali, archive)
        usual, failures = archive._graphql, [message] * (9 if status else 1)
        monkeypatch.setattr(
            archive,
            "_graphql",
            lambda *request: archive._failed(failures.pop()) if failures else usual(*request),
        )
        listed = hibali("ls", "there:", "--json", exit=status).last
        assert listed.get("code", "") == code
    finally:
        archive.close()


@pytest.mark.parametrize("doi", ["zenodo.11", "11.5281/zenodo.11", "10.5281/"])
def test_what_is_no_doi_is_refused(hibali: Any, doi: str) -> None:
    assert "is not a DOI" in str(hibali("sites", "add", "there", "--doi", doi, "--json", exit=2).lines)
