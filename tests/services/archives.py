"""A test double of public archives of datasets: the requests by which Zenodo, Figshare, Dataverse, DANDI, OSF and OpenNeuro list and give
out files.

None of them can run here (PostgreSQL, OpenSearch, Java and more). The double answers as their documents say, refuses other parameters, and
gives out contents as they do: by a redirect to another server, with ranges. Unmodified clients list and read it (test_archive_clients.py).

| archive | source of the requests and answers | not in the double |
|---|---|---|
| Zenodo | zenodo-rdm 6386403 (legacy/serializers), answers of 2019 to 2026, tests/services/zenodo.py | restricted records, limits of rates |
| Figshare | API v2 as its OpenAPI document of 2026 describes it (articles, versions, files), answers of 2021 to 2025 | private articles |
| Dataverse | guides.dataverse.org 6.10, dataverse 6.10 (Datasets.java, JsonPrinter.java), answers of 2019 to 2026 | guestbooks |
| DANDI | dandi 0.81.0, dandiapi.py; dandi-archive of 2026 (views/pagination.py, serializers.py) | Zarr entries, embargoed Dandisets |
| OSF | developer.osf.io, osfclient 0.0.5, answers of 2019 to 2026 | storages of third parties |
| OpenNeuro | its server 4.51: resolvers/snapshots.ts, datalad/files.ts, handlers/datalad.ts; the worker's common/annex.py | drafts, reviewers |
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.services.rest import RefusalError, Reply, Request, RestDouble, Route

MADE = "2025-03-04T05:06:07+00:00"


@dataclass(frozen=True)
class Published:
    """A file of a dataset."""

    path: str
    content: bytes
    restricted: bool = False

    @property
    def md5(self) -> str:
        """The MD5 of what was deposited."""
        return hashlib.md5(self.content, usedforsecurity=False).hexdigest()

    @property
    def sha256(self) -> str:
        """The sha256 of what was deposited."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git_id(self) -> str:
        """The id of a git blob with this content."""
        head = b"blob %d\0" % len(self.content)
        return hashlib.sha1(head + self.content, usedforsecurity=False).hexdigest()

    @property
    def folder(self) -> str:
        """The folder, "" for none."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The name in the folder."""
        return self.path.rpartition("/")[2]


class ContentServer(RestDouble):
    """The object store behind an archive: contents with ranges, at addresses that grant access.

    Attributes:
        contents: What is stored, by number; a test may damage it.
        ranges: Whether it answers with ranges.
        held_from: What is at this offset or later is not sent, until this is None.
    """

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.ranges = True
        self.held_from: int | None = None
        super().__init__()

    def open_paths(self) -> str:
        return r".*"

    def routes(self) -> list[tuple[str, str, Route]]:
        return [(method, r"/blobs/(\d+)", self._get) for method in ("GET", "HEAD")]

    def address(self, number: int) -> str:
        """Return a presigned address."""
        return f"{self.origin}/blobs/{number}?signature=a%2Bb"

    def _get(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("signature")
        if request.query.get("signature") != "a+b" or "Authorization" in request.headers:
            raise RefusalError(403, "the signature is not valid, or there is a login")
        content = self.contents[found[1]]
        if request.method == "HEAD":
            return Reply(content=content)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range") or "")
        if wanted is None or not self.ranges:
            self.sent.add(found[1], len(content))
            return Reply(content=content)
        first, last = int(wanted[1]), int(wanted[2])
        if self.held_from is not None and first >= self.held_from:
            while self.held_from is not None:
                time.sleep(0.02)
            raise ConnectionError("the client was killed")
        part = content[first : last + 1]
        self.sent.add(found[1], len(part))
        return Reply(206, part, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"})


class Archive(RestDouble):
    """An archive with one dataset, of which there are two versions: `files`, and an older one with the first file only.

    Attributes:
        page: How many files a page of a list has at most.
    """

    doi = older_doi = all_versions_doi = ""

    def __init__(self, files: list[Published]) -> None:
        self.files = files
        self.page = 2
        self.blobs = ContentServer()
        self.blobs.contents = {str(number): file.content for number, file in enumerate(files)}
        super().__init__()

    def open_paths(self) -> str:
        return r".*"

    def close(self) -> None:
        self.blobs.close()
        super().close()

    def redirect(self, number: str, status: int = 302) -> Reply:
        """Answer with the address of a content."""
        return Reply(status, None, {"Location": self.blobs.address(int(number))})

    def numbered(self) -> list[tuple[int, Published]]:
        """Return the files with their numbers."""
        return list(enumerate(self.files))


class ZenodoArchive(Archive):
    """Record 11 of Zenodo; 10 is its first version, and 9 stands for all.

    Attributes:
        form: How it describes a record: "zenodo"; "deposition", as one's own, which public records were, too, in 2023; or "rdm".
        foreign: The DOI of each record, if its depositor had one of another publisher.
    """

    form = "zenodo"
    foreign = ""

    doi, older_doi, all_versions_doi = "10.5281/zenodo.11", "10.5281/zenodo.10", "10.5281/zenodo.9"

    def routes(self) -> list[tuple[str, str, Route]]:
        return [
            ("GET", r"/api/records/(\d+)", self._record),
            ("GET", r"/api/records/1[01]/files/(.+)/content", self._content),
        ]

    def _record(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        if found[1] == "9":
            return Reply(302, None, {"Location": f"{self.origin}/api/records/11"})
        if found[1] not in {"10", "11"}:
            raise RefusalError(404, "The persistent identifier does not exist.", expected=True)
        files = self.files if found[1] == "11" else self.files[:1]
        links = [
            f"{self.origin}/api/records/{found[1]}/files/{quote(file.path, errors='surrogatepass')}/content"
            for file in files
        ]
        listed: list[dict[str, Any]] = [
            {"id": "x", "filename": file.path, "filesize": float(len(file.content)), "checksum": file.md5}
            if self.form == "deposition"
            else {
                "id": "x",
                "key": file.path,
                "size": len(file.content),
                "checksum": f"md5:{file.md5}",
                "links": {"self": link},
            }
            for file, link in zip(files, links, strict=True)
        ]
        number = int(found[1])
        doi = self.foreign or f"10.5281/zenodo.{number}"
        if self.form == "rdm":
            entries = {"count": len(listed), "entries": {each["key"]: each for each in listed}}
            pids = {"doi": {"identifier": doi, "provider": "datacite"}}
            return Reply(content={"id": found[1], "created": MADE, "pids": pids, "files": entries})
        record = {"id": number, "doi": doi, "conceptrecid": "9", "created": MADE}
        return Reply(content={**record, "files": listed})

    def _content(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        for number, file in self.numbered():
            if file.path == found[1]:
                return self.redirect(str(number))
        raise RefusalError(404, "File not found.", expected=True)


class FigshareArchive(Archive):
    """Article 11 of Figshare with the versions 1 and 2."""

    doi, older_doi = "10.6084/m9.figshare.11.v2", "10.6084/m9.figshare.11.v1"
    all_versions_doi = "10.6084/m9.figshare.11"

    def routes(self) -> list[tuple[str, str, Route]]:
        return [
            ("GET", r"/v2/articles/11()", self._article),
            ("GET", r"/v2/articles/11/versions/([12])", self._article),
            ("GET", r"/v2/articles/11/versions/([12])/files", self._files),
            ("GET", r"/files/(\d+)", lambda _, found: self.redirect(found[1])),
        ]

    def _article(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        version = int(found[1] or 2)
        article = {"id": 11, "version": version, "doi": f"10.6084/m9.figshare.11.v{version}"}
        folders = {str(number): file.folder for number, file in self.numbered() if file.folder}
        # at most ten files are in the article itself
        return Reply(content={**article, "published_date": MADE, "files": [], "folder_structure": folders})

    def _files(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("page", "page_size")
        page, size = int(request.query.get("page", 1)), int(request.query.get("page_size", 10))
        if not 1 <= size <= 1000:
            raise RefusalError(400, "page_size must be from 1 to 1000")
        files = self.numbered() if found[1] == "2" else self.numbered()[:1]
        return Reply(
            content=[
                {
                    "id": number,
                    "name": file.name,
                    "size": len(file.content),
                    "is_link_only": False,
                    "download_url": f"{self.origin}/files/{number}",
                    "supplied_md5": "",
                    "computed_md5": file.md5,
                }
                for number, file in files[(page - 1) * size : page * size]
            ]
        )


class DataverseArchive(Archive):
    """The dataset doi:10.70122/FK2/ABC with the versions 1.0 and 2.1; files named *.sav are converted tables.

    Attributes:
        lists_pages: Whether it has /files and excludeFiles, as since 6.1.
        algorithm: Of the checksums: MD5, SHA-1, SHA-256 or SHA-512, as the installation is configured.
    """

    lists_pages = True
    algorithm = "MD5"
    doi = older_doi = all_versions_doi = "10.70122/FK2/ABC"

    def routes(self) -> list[tuple[str, str, Route]]:
        return [
            ("GET", r"/api(?:/v1)?/datasets/:persistentId/versions/([^/]+)", self._version),
            ("GET", r"/api/datasets/:persistentId/versions/([^/]+)/files", self._listed),
            ("GET", r"/api(?:/v1)?/access/datafile/(\d+)", self._content),
        ]

    def _version(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("persistentId", "excludeFiles")
        number, files = self._files_of(request, found[1])
        data = {"versionNumber": number[0], "versionMinorNumber": number[1], "versionState": "RELEASED"}
        if not self.lists_pages or request.query.get("excludeFiles") != "true":
            data["files"] = [self._shown(*one) for one in files]
        return Reply(content={"status": "OK", "data": data})

    def _files_of(
        self, request: Request, version: str
    ) -> tuple[tuple[int, int], list[tuple[int, Published]]]:
        number = {":latest-published": (2, 1), "2.1": (2, 1), "1.0": (1, 0)}.get(version)
        if request.query.get("persistentId") != f"doi:{self.doi}" or number is None:
            raise RefusalError(404, "Dataset not found", expected=True)
        return number, self.numbered() if number == (2, 1) else self.numbered()[:1]

    def _listed(self, request: Request, found: re.Match[str]) -> Reply:
        """Answer with a page. PostgreSQL may return files of the same name in another order for each page."""
        request.allow("persistentId", "limit", "offset", "orderCriteria")
        if not self.lists_pages:
            raise RefusalError(404, "there is no such request")
        files = self._files_of(request, found[1])[1]
        offset, limit = int(request.query.get("offset", 0)), int(request.query.get("limit", 10**9))
        order = request.query.get("orderCriteria", "NameAZ")
        if order.startswith("Name"):
            files.sort(key=lambda each: -each[0] if offset else each[0])
            files.sort(key=lambda each: each[1].name, reverse=order == "NameZA")
        elif order == "Size":
            files.sort(key=lambda each: len(each[1].content))
        page = [self._shown(*one) for one in files[offset : offset + limit]]
        return Reply(content={"status": "OK", "totalCount": len(files), "data": page})

    def _shown(self, number: int, file: Published) -> dict[str, Any]:
        content: dict[str, Any] = {"id": number, "filename": file.name, "filesize": len(file.content)}
        name = self.algorithm.lower().replace("-", "")
        digest = hashlib.new(name, file.content, usedforsecurity=False).hexdigest()
        content["checksum"] = {"type": self.algorithm, "value": digest}
        if name == "md5":
            content["md5"] = digest
        content["creationDate"] = MADE[:10]
        if file.name.endswith(".sav"):  # an ingested table: what is listed is the original's checksum
            content |= {"filename": file.name.replace(".sav", ".tab"), "filesize": 3}
            content |= {
                "originalFileFormat": "application/x-spss-sav",
                "originalFileName": file.name,
                "originalFileSize": len(file.content),
            }
        folder = {"directoryLabel": file.folder} if file.folder else {}
        return {"label": content["filename"], "restricted": file.restricted, **folder, "dataFile": content}

    def _content(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("format")
        is_table = self.files[int(found[1])].name.endswith(".sav")
        if self.files[int(found[1])].restricted:
            raise RefusalError(403, "not authorized to access this object", expected=True)
        if is_table and request.query.get("format") != "original":
            return Reply(content=b"tab")
        return self.redirect(found[1], 303)


class DandiArchive(Archive):
    """Dandiset 000011 with the published versions 0.1.0 and 0.2.0."""

    doi, older_doi = "10.48324/dandi.000011/0.2.0", "10.48324/dandi.000011/0.1.0"
    all_versions_doi = "10.48324/dandi.000011"

    def routes(self) -> list[tuple[str, str, Route]]:
        version = r"/api/dandisets/000011/versions/(0\.[12]\.0)"
        return [
            ("GET", r"/api/dandisets/000011/", self._dandiset),
            ("GET", rf"{version}/assets/", self._assets),
            ("GET", r"/api/assets/0000-(\d+)/download/", lambda _, found: self.redirect(found[1])),
        ]

    def _dandiset(self, request: Request, _: re.Match[str]) -> Reply:
        request.allow()
        newest = {"version": "0.2.0", "name": "scans", "asset_count": len(self.files), "created": MADE}
        return Reply(content={"identifier": "000011", "most_recent_published_version": newest})

    def _assets(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("page", "page_size", "metadata", "order")
        page = int(request.query.get("page", 1))
        size = min(self.page, int(request.query.get("page_size", 100)))
        files = self.numbered() if found[1] == "0.2.0" else self.numbered()[:1]
        here = f"{self.origin}/api/dandisets/000011/versions/{found[1]}/assets/"
        more = f"{here}?metadata={request.query.get('metadata', 'false')}&page={page + 1}"
        return Reply(
            content={
                "count": len(files) if page == 1 else None,
                "next": more if page * size < len(files) else None,
                "previous": None,
                "results": [self._asset(*one) for one in files[(page - 1) * size : page * size]],
            }
        )

    def _asset(self, number: int, file: Published) -> dict[str, Any]:
        digest = {"dandi:dandi-etag": f"{file.md5}-1", "dandi:sha2-256": file.sha256}
        asset = {"asset_id": f"0000-{number}", "blob": f"blob-{number}", "zarr": None, "path": file.path}
        times = {"created": MADE, "modified": MADE}
        return {**asset, **times, "size": len(file.content), "metadata": {"digest": digest}}


class OsfArchive(Archive):
    """The project abcde of OSF, and its registration vwxyz, with the first file only."""

    doi, older_doi, all_versions_doi = "10.17605/OSF.IO/ABCDE", "10.17605/OSF.IO/VWXYZ", ""

    def routes(self) -> list[tuple[str, str, Route]]:
        listed: Callable[[Request, re.Match[str]], Reply] = self._files
        return [
            ("GET", r"/v2/nodes/([a-z]+)/", self._node),
            ("GET", r"/v2/(nodes/abcde|registrations/vwxyz)/files/osfstorage/(.*)", listed),
            ("GET", r"/download/(\d+)/", lambda _, found: self.redirect(found[1])),
        ]

    def _node(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        if found[1] != "abcde":
            raise RefusalError(404, "Not found.", expected=True)
        return Reply(content={"data": {"id": "abcde", "type": "nodes"}})

    def _files(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("page", "page[size]")
        folder = bytes.fromhex(found[2].strip("/")).decode()  # OSF has ids of its own for folders
        files = self.numbered() if found[1].startswith("nodes") else self.numbered()[:1]
        inside = f"{folder}/" if folder else ""
        names = sorted(
            {file.path[len(inside) :].partition("/")[0] for _, file in files if file.path.startswith(inside)}
        )
        page = int(request.query.get("page", 1))
        here = f"{self.origin}/v2/{found[1]}/files/osfstorage/"
        shown = [
            self._item(here, inside + name, files)
            for name in names[(page - 1) * self.page : page * self.page]
        ]
        this = f"{here}{quote(found[2])}"
        more = f"{this}?page={page + 1}" if page * self.page < len(names) else None
        return Reply(content={"data": shown, "links": {"next": more}})

    def _item(self, here: str, path: str, files: list[tuple[int, Published]]) -> dict[str, Any]:
        known = {file.path: (number, file) for number, file in files}
        if path not in known:
            related = {"links": {"related": {"href": f"{here}{path.encode().hex()}/"}}}
            attributes = {"kind": "folder", "name": path, "materialized_path": f"/{path}/"}
            return {"attributes": attributes, "relationships": {"files": related}}
        number, file = known[path]
        extra = {"hashes": {"md5": file.md5, "sha256": file.sha256}}
        attributes = {
            "kind": "file",
            "name": file.name,
            "materialized_path": f"/{path}",
            "date_modified": MADE,
        }
        attributes |= {"size": len(file.content), "extra": extra}
        return {"attributes": attributes, "links": {"download": f"{self.origin}/download/{number}/"}}


class OpenNeuroArchive(Archive):
    """Dataset ds000011 of OpenNeuro with the snapshots 1.0.0 and 1.1.0.

    Large files are in an annex, with an MD5 or a sha256 in the key; the first file was not exported to the object store yet.
    Errors of GraphQL have the status 200.
    """

    doi, older_doi = "10.18112/openneuro.ds000011.v1.1.0", "10.18112/openneuro.ds000011.v1.0.0"
    all_versions_doi = "10.18112/openneuro.ds000011"

    def routes(self) -> list[tuple[str, str, Route]]:
        return [
            ("POST", r"/crn/graphql", self._graphql),
            ("GET", r"/crn/datasets/ds000011/objects/(.+)", self._object),
            (
                "HEAD",
                r"/crn/datasets/ds000011/objects/(.+)",
                self._object,
            ),  # Express answers by the route of GET
        ]

    def _graphql(self, request: Request, _: re.Match[str]) -> Reply:
        if "json" not in request.headers.get("Content-Type", ""):
            raise RefusalError(415, "Apollo answers only to application/json")
        asked = request.json()
        query = asked["query"]
        for name, value in (asked.get("variables") or {}).items():
            query = query.replace(f"${name})", json.dumps(value) + ")").replace(
                f"${name},", json.dumps(value) + ","
            )
        snapshot = re.search(r'snapshot\(datasetId: "(\w+)", tag: "([^"]*)"\)', query)
        dataset = re.search(r'dataset\(id: "(\w+)"\)', query)
        if (snapshot or dataset or [""])[1] != "ds000011":
            return self._failed("Dataset ds000099 does not exist.")
        tags = ("1.0.0", "1.1.0")
        if snapshot is not None:
            if snapshot[2] not in tags:
                return self._failed("Not Found")
            return Reply(content={"data": {"snapshot": self._snapshot(snapshot[2])}})
        if "latestSnapshot" in query:
            return Reply(content={"data": {"dataset": {"latestSnapshot": self._snapshot(tags[-1])}}})
        return Reply(
            content={"data": {"dataset": {"snapshots": [{"id": f"ds000011:{tag}"} for tag in tags]}}}
        )

    def _failed(self, message: str) -> Reply:
        return Reply(content={"data": None, "errors": [{"message": message, "path": ["snapshot"]}]})

    def _snapshot(self, tag: str) -> dict[str, Any]:
        files = self.numbered() if tag == "1.1.0" else self.numbered()[:1]
        shown = [self._file(*one) for one in files]
        return {"id": f"ds000011:{tag}", "tag": tag, "created": MADE, "files": shown}

    def _file(self, number: int, file: Published) -> dict[str, Any]:
        key = {".gz": f"MD5E-s{len(file.content)}--{file.md5}.nii.gz"}.get(
            file.path[-3:], f"SHA256E-s{len(file.content)}--{file.sha256}{file.path[-4:]}"
        )
        annexed = file.path.endswith((".gz", ".sav", ".bin"))
        own = key if annexed else file.git_id
        address = self.blobs.address(number)
        if number == 0:
            address = f"{self.origin}/crn/datasets/ds000011/objects/{own}?filename={quote(file.name)}"
        size = len(file.content)
        return {
            "id": own,
            "filename": file.path,
            "size": size,
            "annexed": annexed,
            "directory": False,
            "urls": [address],
        }

    def _object(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow("filename")
        if found[1] != self.files[0].git_id:
            raise RefusalError(404, "object not found in git tree", expected=True)
        return Reply(content=self.blobs.contents["0"])


ARCHIVES = {
    "zenodo": ZenodoArchive,
    "figshare": FigshareArchive,
    "dataverse": DataverseArchive,
    "dandi": DandiArchive,
    "osf": OsfArchive,
    "openneuro": OpenNeuroArchive,
}
