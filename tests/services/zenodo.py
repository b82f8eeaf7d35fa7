"""A test double of Zenodo's REST API: depositions with files, publication, and the search of records.

Zenodo (InvenioRDM) needs PostgreSQL, OpenSearch and more, which cannot run here. The double does what developers.zenodo.org says of
these requests, refuses what it does not name, and bosh (boutiques 0.5.33), an independent client, publishes and searches with it. Its
search knows only terms in slashes, `keywords:(/.../)` and `keywords:"..."`, joined by AND. It does not know new versions, limits of
rates, or how long a real search needs until it finds a new record.

| request | Zenodo: zenodo-rdm 6386403 (2026-08-20), read on 2026-11-27, and developers.zenodo.org | the double |
|---|---|---|
| GET /api/records | 400 for pages of more than 25 without a login, 100 with one (site/zenodo_rdm/params.py) | the same |
| GET /api/deposit/depositions | one's own, by a query; 403 without a token | the same |
| POST depositions | 201; unknown fields of metadata are ignored or 400 by field | unknown fields are 400 |
| GET, DELETE depositions/N | one's own, with all files (`filename`, `filesize`, MD5 without its name); 404 for others | GET only |
| PUT to the bucket link, POST files | 201 with key, size and `md5:` of what was stored, in one transaction: a file is replaced whole; names without slashes; 403 once it is published | the same; MD5 and content are `damaged` for a test |
| GET, DELETE of the bucket link and a name | the content, also in ranges; 204, 404 | the same |
| POST actions/publish | 202; 400 with the lacking fields | the same |
| limits of rates | 429 with Retry-After | only as a fault of a test |
"""

from __future__ import annotations

import email
import email.policy
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from tests.services.rest import RefusalError, Reply, Request, RestDouble, Route
from tests.support.shared_dict import SharedDict

_MOST_HITS = 25  # of one page without a login
_REQUIRED = ("title", "upload_type", "description", "creators")
_KNOWN = {*_REQUIRED, "version", "keywords", "related_identifiers"}


@dataclass
class Deposition:
    """A draft, or a record once it was `submitted`."""

    number: int
    metadata: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    submitted: bool = False


class Zenodo(RestDouble):
    """The double; `depositions` are all, by number. Of a stored file that is `damaged`, the last byte is lost."""

    def __init__(self) -> None:
        self.depositions = SharedDict[int, Deposition]()
        self.damaged = ""
        super().__init__()

    def open_paths(self) -> str:
        return r"/api/records/.*|/api/deposit/depositions"

    def error(self, status: int, message: str) -> Any:
        return {"status": status, "message": message}

    def routes(self) -> list[tuple[str, str, Route]]:
        one = r"/api/deposit/depositions/(\d+)"
        return [
            ("GET", r"/api/deposit/depositions", self._list),
            ("POST", r"/api/deposit/depositions", self._create),
            ("POST", one + "/files", self._post_file),
            ("GET", one, self._one),
            ("PUT", r"/api/files/bucket-(\d+)/([^/]+)", self._put_file),
            ("GET", r"/api/files/bucket-(\d+)/([^/]+)", self._get_file),
            ("DELETE", r"/api/files/bucket-(\d+)/([^/]+)", self._delete_file),
            ("POST", one + "/actions/publish", self._publish),
            ("GET", r"/api/records/", self._search),
            ("GET", r"/api/records/(\d+)", self._record),
            ("GET", r"/api/records/(\d+)/files/([^/]+)/content", self._content),
        ]

    def published(self) -> list[Deposition]:
        return [each for each in self.depositions.values() if each.submitted]

    def _check_login(self, request: Request) -> None:
        sent = request.query.pop("access_token", "") or request.headers.get("Authorization", "").removeprefix(
            "Bearer "
        )
        if not self.accepts(sent):
            raise RefusalError(403, "Permission denied.", expected=True)

    def _draft(self, number: str) -> Deposition:
        found = self.depositions.get(int(number))
        if found is None or found.submitted:
            raise RefusalError(404, "there is no such draft")
        return found

    def _list(self, request: Request, _: re.Match[str]) -> Reply:
        self._check_login(request)
        request.allow("q", "size", "page", "sort", "status", "all_versions")
        query = request.query.get("q", "")
        found = [self._described(each) for each in self.depositions.values() if _matches(each, query)]
        return Reply(content=found[: int(request.query.get("size", 10))])

    def _create(self, request: Request, _: re.Match[str]) -> Reply:
        self._check_login(request)
        sent = request.json()
        metadata = sent.get("metadata", {})
        odd = set(sent) - {"metadata"} | set(metadata) - _KNOWN
        if odd:
            raise RefusalError(400, f"unknown fields: {sorted(odd)}")
        made = Deposition(1000 + len(self.depositions), metadata)
        self.depositions[made.number] = made
        return Reply(201, self._described(made))

    def _post_file(self, request: Request, found: re.Match[str]) -> Reply:
        draft = self._draft(found[1])
        head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
        parts = email.message_from_bytes(head + request.body(), policy=email.policy.HTTP)
        fields = {part.get_param("name", header="content-disposition"): part for part in parts.iter_parts()}
        name = fields["filename"].get_content().strip()
        draft.files[name] = fields["file"].get_payload(decode=True)
        return Reply(201, {"filename": name})

    def _put_file(self, request: Request, found: re.Match[str]) -> Reply:
        body = request.body()
        draft, name = self._open_draft(found[1]), found[2]
        draft.files[name] = body[:-1] if name == self.damaged else body
        self.received.add(name, len(body))
        stored = draft.files[name]
        return Reply(201, {"key": name, "size": len(stored), "checksum": _md5(stored), "is_head": True})

    def _open_draft(self, number: str) -> Deposition:
        if self.depositions[int(number)].submitted:
            raise RefusalError(403, "Permission denied.", expected=True)
        return self._draft(number)

    def _one(self, request: Request, found: re.Match[str]) -> Reply:
        request.allow()
        made = self.depositions.get(int(found[1]))
        if made is None:
            raise RefusalError(404, "The persistent identifier does not exist.", expected=True)
        return Reply(content=self._described(made))

    def _get_file(self, request: Request, found: re.Match[str]) -> Reply:
        content = self.depositions[int(found[1])].files.get(found[2])
        if content is None:
            raise RefusalError(404, "File not found.", expected=True)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range") or "")
        if wanted is None:
            return Reply(content=content)
        first = int(wanted[1])
        part = content[first : int(wanted[2]) + 1]
        return Reply(206, part, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"})

    def _delete_file(self, _: Request, found: re.Match[str]) -> Reply:
        if self._open_draft(found[1]).files.pop(found[2], None) is None:
            raise RefusalError(404, "File not found.", expected=True)
        return Reply(204)

    def _publish(self, _: Request, found: re.Match[str]) -> Reply:
        draft = self._draft(found[1])
        missing = [name for name in _REQUIRED if not draft.metadata.get(name)]
        if missing or not draft.files:
            raise RefusalError(400, f"missing: {missing or 'a file'}")
        draft.submitted = True
        return Reply(202, self._described(draft))

    def _search(self, request: Request, _: re.Match[str]) -> Reply:
        request.allow("q", "file_type", "type", "page", "size", "all_versions", "sort", "keywords")
        if int(request.query.get("size", 10)) > _MOST_HITS:
            raise RefusalError(400, f"Page size cannot be greater than {_MOST_HITS}.")
        hits = [self._shown(each) for each in self.published() if _matches(each, request.query.get("q", ""))]
        return Reply(
            content={"hits": {"hits": hits[: int(request.query.get("size", 10))], "total": len(hits)}}
        )

    def _record(self, _: Request, found: re.Match[str]) -> Reply:
        record = self.depositions.get(int(found[1]))
        if record is None or not record.submitted:
            raise RefusalError(404, "there is no such record", expected=True)
        return Reply(content=self._shown(record))

    def _content(self, _: Request, found: re.Match[str]) -> Reply:
        return Reply(content=self.depositions[int(found[1])].files[found[2]])

    def _described(self, made: Deposition) -> dict[str, Any]:
        links = {"bucket": f"{self.origin}/api/files/bucket-{made.number}"}
        doi = {"doi": f"10.5072/zenodo.{made.number}"} if made.submitted else {}
        return {
            "id": made.number,
            "submitted": made.submitted,
            "metadata": made.metadata,
            "links": links,
            "files": [
                {"id": "x", "filename": name, "filesize": len(content), "checksum": _md5(content)[4:]}
                for name, content in made.files.items()
            ],
            **doi,
        }

    def _shown(self, record: Deposition) -> dict[str, Any]:
        files = [
            {
                "key": name,
                "checksum": _md5(content),
                "links": {"self": f"{self.origin}/api/records/{record.number}/files/{name}/content"},
            }
            for name, content in record.files.items()
        ]
        metadata = {**record.metadata, "publication_date": "2026-11-27"}
        shown = {"id": record.number, "doi": f"10.5072/zenodo.{record.number}", "metadata": metadata}
        return {**shown, "files": files, "stats": {"version_downloads": record.number % 7}}


def _md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"


def _matches(record: Deposition, query: str) -> bool:
    """Return whether a record has all terms of a query; a term in slashes is a pattern for a whole value, or a word of it."""
    keywords = [str(each) for each in record.metadata.get("keywords", [])]
    values = [*keywords, *(str(record.metadata.get(name, "")) for name in ("title", "description"))]
    in_keywords, anywhere = (
        [*texts, *re.findall(r"[A-Za-z0-9.]+", " ".join(texts))] for texts in (keywords, values)
    )
    for term in filter(None, query.split(" AND ")):
        if found := re.fullmatch(r'keywords:"([^"]*)"', term):
            if found[1] not in keywords:
                return False
            continue
        found = re.fullmatch(r"(keywords:)?\(/(.*)/\)", term)
        if found is None:
            raise RefusalError(400, f"the double does not know the term {term}")
        if not any(
            re.fullmatch(found[2], value, re.DOTALL) for value in (in_keywords if found[1] else anywhere)
        ):
            return False
    return True
