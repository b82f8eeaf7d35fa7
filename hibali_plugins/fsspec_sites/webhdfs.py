"""Check the answers of HDFS data nodes, of which fsspec's WebHDFS returns also errors as the content of a file.

A name node redirects each request for content to a data node (WebHDFS REST API, "HTTP Query Parameter Dictionary" and "Create
and Write to a File"): https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""

from __future__ import annotations

import errno
import os
import unicodedata
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

_OF_DATA_NODES = "namenoderpcaddress="  # in the query of every redirection


def check_answers(filesystem: Any) -> None:
    """Let the session of a WebHDFS filesystem raise the errors of data nodes, and keep the names of files in redirections."""
    filesystem.session.hooks["response"].append(_check)


def _check(response: Any, *_: Any, **__: Any) -> None:
    """Check one answer; a `requests` hook."""
    location = response.headers.get("Location")
    if location is not None:
        response.headers["Location"] = with_path_of(response.request.url, location)
    elif _OF_DATA_NODES in response.url and not response.ok:
        response.close()  # it was not read yet
        number = {403: errno.EACCES, 404: errno.ENOENT}.get(response.status_code, errno.EIO)
        raise OSError(number, os.strerror(number))


def with_path_of(requested: str, location: str) -> str:
    """Return `location` with the path that was requested, if both name the same file except for the Unicode normal form.

    Name nodes write the path in normal form C (`java.net.URI.toASCIIString`), which names another file, or none.
    """
    one, other = urlsplit(requested), urlsplit(location)
    if _normal(one) != _normal(other):
        return location
    return other._replace(path=one.path).geturl()


def _normal(url: SplitResult) -> str:
    return unicodedata.normalize("NFC", unquote(url.path, errors="surrogateescape"))
