"""Search Zenodo for descriptors, and publish them there with a DOI (https://developers.zenodo.org: depositions, records).

A publication cannot be taken back. Each step can be repeated: the digest of the descriptor is a keyword of its record, so a later call
finds a draft, or a record, that an earlier one made, even if its answer was lost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from hibali.errors import AccessError, IncompleteError, RefusedError, TryLaterError, UsageError
from hibali.http.client import HttpClient, Response
from hibali.http.errors import is_failing
from hibali.http.fetch import check_post_url, fetch
from hibali.retry import with_retries
from hibali.text import printable
from registry.pipeline import Pipeline

TOKEN_VARIABLE = "ZENODO_TOKEN"  # noqa: S105 - its name
_DEPOSITIONS = "/api/deposit/depositions"
_MOST_BYTES = 8 * 1024 * 1024
_MOST_HITS = 25  # that Zenodo gives without a login
_MARK = "hibali-sha256-"


@dataclass(frozen=True, slots=True)
class ZenodoRecord:
    """A record with a descriptor; `downloads` is None for one's own."""

    id: str
    doi: str
    title: str
    version: str
    description: str
    downloads: int | None = None
    is_deprecated: bool = False


@dataclass(frozen=True, slots=True)
class Publication:
    """A published descriptor; `is_new` is False if an earlier call had published it."""

    record: ZenodoRecord
    is_new: bool


def search_zenodo(origin: str, origins: frozenset[str], words: Sequence[str]) -> list[ZenodoRecord]:
    """Return the records with descriptors that contain all words, those with most downloads first.

    The query is that of bosh (boutiques 0.5.33, zenodoHelper.py): words are parts of any field, in any case.
    """
    terms = "".join(f" AND (/.*{_without_case(word)}.*/)" for word in words)
    query = {
        "q": f"keywords:(/Boutiques/) AND keywords:(/schema.*/) AND keywords:(/version.*/){terms}",
        "file_type": "json",
        "type": "software",
        "page": "1",
        "size": str(_MOST_HITS),
    }
    url = f"{origin}/api/records/?{urlencode(query, quote_via=quote)}"
    answer = _read(fetch(url, origins, _MOST_BYTES), "zenodo")
    hits = answer.get("hits")
    found = hits.get("hits") if isinstance(hits, dict) else None
    if not isinstance(found, list):
        raise _bad_answer("zenodo")
    records = [record for hit in found if (record := _record_of(hit)) is not None]
    return sorted(records, key=lambda record: -(record.downloads or 0))


def _without_case(word: str) -> str:
    """Return a pattern of Elasticsearch for a word in any case."""
    letters = (f"[{c.upper()}{c.lower()}]" if c.isalpha() else c if c.isalnum() else "." for c in word)
    return "".join(letters)


def _record_of(hit: Any) -> ZenodoRecord | None:
    metadata = hit.get("metadata") if isinstance(hit, dict) else None
    if not isinstance(metadata, dict) or not re.fullmatch(r"[0-9]{1,12}", str(hit.get("id"))):
        return None
    stats = hit.get("stats")
    downloads = stats.get("version_downloads", 0) if isinstance(stats, dict) else 0
    keywords = metadata.get("keywords")
    return ZenodoRecord(
        f"zenodo.{hit['id']}",
        printable(str(hit.get("doi") or metadata.get("doi") or "")),
        printable(str(metadata.get("title", ""))),
        printable(str(metadata.get("version", ""))),
        printable(re.sub(r"<[^>]*>", "", str(metadata.get("description", "")))),
        int(downloads) if isinstance(downloads, int | float) else 0,
        isinstance(keywords, list) and "deprecated" in keywords,
    )


class ZenodoClient:
    """Requests to Zenodo with a token, which is sent to this origin only."""

    def __init__(self, origin: str, token: str) -> None:
        """Set the fields. Raise `UsageError` for an origin that a token must not be sent to."""
        check_post_url(origin)
        self._origin = origin
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def request(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        """Send one request and return the parsed answer.

        Raises:
            AccessError: The token is not accepted.
            RefusedError: The request is refused, with Zenodo's reasons.
            TryLaterError: Zenodo is not reachable or too busy.
        """
        headers = {"Content-Type": kind} if body else {}
        # A connection for each: over a kept one that just ended, a request would be sent again.
        client = HttpClient(self._origin, "zenodo", headers=self._headers)
        try:
            response = client.request(method, path, headers=headers, body=body, limit=_MOST_BYTES)
        finally:
            client.close()
        if response.status in {401, 403}:
            raise login_error("Zenodo does not accept the token", self._origin)
        if is_failing(response.status):
            message = f"Zenodo's status is {response.status}"
            raise TryLaterError("server-busy", message, subject=self._origin, transient=True)
        if not 200 <= response.status < 300:
            raise RefusedError("zenodo-refused", _reasons(response), subject=self._origin)
        return _read(response.body, self._origin) if response.body else {}

    def path_of(self, url: Any) -> str:
        """Return the path of a link in an answer. Raise `TryLaterError` if it leads elsewhere: the token must not go there."""
        parts, own = urlsplit(str(url)), urlsplit(self._origin)
        if (parts.scheme, parts.netloc) != (own.scheme, own.netloc):
            raise _bad_answer(self._origin)
        return parts.path


def login_error(message: str, origin: str) -> AccessError:
    """Return the error for a token that is missing or not accepted."""
    hint = f"Create a token with deposit:write and deposit:actions in your account there, and set {TOKEN_VARIABLE}."
    return AccessError("zenodo-login", message, subject=origin, hint=hint)


def _reasons(response: Response) -> str:
    try:
        answer = json.loads(response.body)
        errors = answer.get("errors") or []
        texts = [f"{each.get('field', '')}: {each.get('message', '')}" for each in errors]
        return printable("; ".join([str(answer.get("message", "")), *texts]))[:500]
    except (ValueError, AttributeError, RecursionError):
        return f"Zenodo refused it (status {response.status})"


def _read(raw: bytes, subject: str) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise _bad_answer(subject) from None
    if isinstance(found, list):
        return {"list": found}
    if not isinstance(found, dict):
        raise _bad_answer(subject)
    return found


def _bad_answer(subject: str) -> TryLaterError:
    return TryLaterError("bad-answer", "Zenodo's answer is not as its documentation says", subject=subject)


def publish_at_zenodo(client: ZenodoClient, pipeline: Pipeline) -> Publication:
    """Publish a descriptor, once, and check that the record has its content.

    Raises:
        UsageError: The descriptor lacks what a record needs.
        IncompleteError: The record has another content.
        HibaliError: As `ZenodoClient.request`.
    """
    metadata = metadata_of(pipeline)
    draft = _find(client, pipeline)
    is_new = draft is None or not draft.get("submitted")
    if draft is None:
        content = json.dumps({"metadata": metadata}).encode()
        draft = client.request("POST", _DEPOSITIONS, content)
    number = str(draft.get("id"))
    if not re.fullmatch(r"[0-9]{1,12}", number):
        raise _bad_answer("zenodo")
    if is_new:
        _upload(client, draft, pipeline)
        draft = client.request("POST", f"{_DEPOSITIONS}/{number}/actions/publish")
    record = client.request("GET", f"/api/records/{number}")
    _check_content(record, pipeline)
    found = _record_of({**record, "id": number, "doi": draft.get("doi") or record.get("doi")})
    if found is None or not found.doi:
        raise _bad_answer("zenodo")
    return Publication(found, is_new)


def metadata_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return the metadata of a record, as bosh writes them, and the digest as a keyword. Raise `UsageError`."""
    document: Mapping[str, Any] = pipeline.document
    missing = [name for name in ("author", "container-image") if not document.get(name)]
    if missing:
        raise UsageError(
            "not-publishable",
            f"the descriptor has no {' and no '.join(missing)}, which a publication needs",
            subject=pipeline.reference,
        )
    keywords = ["Boutiques", f"schema-version:{document['schema-version']}", *_tags(document.get("tags"))]
    keywords += [document["container-image"]["type"], *(["tested"] if document.get("tests") else [])]
    related = [
        {"identifier": document[name], "relation": "hasPart"}
        for name in ("url", "tool-doi", "descriptor-url")
        if isinstance(document.get(name), str)
    ]
    return {
        "title": pipeline.title,
        "upload_type": "software",
        "description": pipeline.description or f"Boutiques descriptor for {pipeline.title}",
        "creators": [{"name": document["author"]}],
        "version": document["tool-version"],
        "keywords": [*keywords, _MARK + pipeline.digest],
        **({"related_identifiers": related} if related else {}),
    }


def _tags(tags: Any) -> Iterator[str]:
    for name, value in tags.items() if isinstance(tags, dict) else ():
        if isinstance(value, bool):
            yield name
        elif isinstance(value, str):
            yield f"{name}:{value}"
        elif isinstance(value, list):
            yield from (f"{name}:{each}" for each in value)


def _find(client: ZenodoClient, pipeline: Pipeline) -> dict[str, Any] | None:
    """Return one's own deposition of this descriptor, a published one first; None if there is none."""
    mark = _MARK + pipeline.digest
    query = urlencode({"q": f'keywords:"{mark}"', "size": "100"}, quote_via=quote)
    answer = with_retries(lambda: client.request("GET", f"{_DEPOSITIONS}?{query}"), subject="zenodo")
    found = []
    for each in answer.get("list", ()):
        metadata = each.get("metadata") if isinstance(each, dict) else None
        keywords = metadata.get("keywords") if isinstance(metadata, dict) else None
        if isinstance(keywords, list) and mark in keywords:
            found.append(each)
    return next(iter(sorted(found, key=lambda each: not each.get("submitted"))), None)


def _file_name(pipeline: Pipeline) -> str:
    return f"{pipeline.name}.json"


def _upload(client: ZenodoClient, draft: dict[str, Any], pipeline: Pipeline) -> None:
    """Put the descriptor into a draft; one of the same name is replaced by the same content."""
    links = draft.get("links")
    bucket = client.path_of(links.get("bucket") if isinstance(links, dict) else None)
    target = f"{bucket}/{quote(_file_name(pipeline), safe='')}"
    with_retries(
        lambda: client.request("PUT", target, pipeline.raw, "application/octet-stream"), subject="zenodo"
    )


def _check_content(record: dict[str, Any], pipeline: Pipeline) -> None:
    """Raise `IncompleteError` unless the record has the descriptor's own MD5, which is the only digest that Zenodo has."""
    wanted = hashlib.md5(pipeline.raw, usedforsecurity=False).hexdigest()
    files = record.get("files")
    sums = (
        [str(each.get("checksum")) for each in files if isinstance(each, dict)]
        if isinstance(files, list)
        else []
    )
    if f"md5:{wanted}" not in sums:
        raise IncompleteError(
            "content-differs",
            "the published record has another content than the descriptor",
            subject=f"zenodo.{record.get('id')}",
        )
