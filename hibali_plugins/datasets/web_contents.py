"""Get annexed contents from web servers with a login that git-annex does not have, such as a token (S15)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from hibali.annex_key import key_of_name
from hibali.config.model import Site
from hibali.errors import HibaliError, IncompleteError
from hibali.http.errors import error_of
from hibali.http.login import Authorization
from hibali.http.rest import Call, RestClient
from hibali.text import printable
from hibali_plugins.datasets.annex_branch import WEB, AnnexBranch
from hibali_plugins.datasets.repository import Repository, failure_text, read_key, run_annex
from transfers.stores.web_login import authorize, site_above

_MOST = 1 << 40  # bytes of a content whose key has no size


def get_with_login(repository: Repository, keys: Iterable[bytes], sites: Sequence[Site]) -> dict[bytes, str]:
    """Get the contents of keys that have a URL at one of the sites; return the reason for each of these that failed."""
    if not sites:
        return {}
    records = AnnexBranch(repository).records(keys)
    urls = {
        key: (url, site)
        for key, record in records.items()
        for url in record.urls
        if WEB in record.copies and (site := site_above(url, sites)) is not None
    }
    authorizations = {site.name: authorize(site) for site in sites}
    failed: dict[bytes, str] = {}
    for key, (url, site) in urls.items():
        try:
            _get(repository, key, url, site, authorizations[site.name])
        except HibaliError as problem:
            failed[key] = f"{site.name}: {problem.message}" + (f" ({problem.hint})" if problem.hint else "")
    return dict.fromkeys(urls, "") | failed


def _get(
    repository: Repository, key: bytes, url: str, site: Site, authorization: Authorization | None
) -> None:
    """Download a content and give it to git-annex, which verifies it by its key."""
    folder = Path(os.fsdecode(repository.git)) / "annex" / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="hibali-") as private:
        file = Path(private) / "content"
        with file.open("xb") as stream:
            _download(url, key, site, authorization, stream)
        real = key_of_name(key).decode("utf-8", "surrogateescape")
        finished = run_annex(repository, "setkey", real, str(file))
    if finished.exit_code != 0:
        raise IncompleteError(
            "annex-failed", failure_text("git annex setkey", finished), subject=printable(key)
        )


def _download(
    url: str, key: bytes, site: Site, authorization: Authorization | None, stream: IO[bytes]
) -> None:
    """Write a content to a file, with a login that is renewed once. Raises `UsageError` for a redirect to another host."""
    parts = urlsplit(url)
    known = read_key(key)
    size = known.size if known is not None and known.size >= 0 else _MOST
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
    client = RestClient(
        f"{parts.scheme}://{parts.netloc}",
        site.name,
        login=authorization,
        judge=lambda _, response: error_of(response.status, site.name),
    )
    with closing(client):
        client.send(Call("GET", target, headers=headers, most=size, receive=stream.write))
