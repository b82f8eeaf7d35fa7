"""Removing objects: each looked at once more, then many in one request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice

from hibali.errors import HibaliError, IncompleteError
from transfers.entry import Entry, Kind
from transfers.store import Problem
from transfers.stores import s3_xml
from transfers.stores.s3_errors import error_of, problem_of
from transfers.stores.s3_requests import Requests

_BATCH = 256  # of at most 1000 (Amazon S3 API reference, DeleteObjects)

_Answers = dict[bytes, Problem | None]


class Removing:
    """The removing half of a store."""

    def __init__(self, requests: Requests, pool: Executor, key_of: Callable[[bytes], bytes]) -> None:
        """`key_of` gives the whole key of a path below the root."""
        self._requests = requests
        self._pool = pool
        self._key_of = key_of
        self._in_batches = True

    def remove(
        self, entries: Iterable[Entry], check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store.remove; a folder is nothing here. `check` raises where the target is no longer ours."""
        coming = iter(entries)
        while batch := list(islice(coming, _BATCH)):
            check()
            files = [entry for entry in batch if entry.kind is not Kind.FOLDER]
            looked = dict(zip((e.path for e in files), self._pool.map(self._look, files), strict=True))
            standing = [path for path, found in looked.items() if found is True]
            answers = self.remove_keys([self._key_of(path) for path in standing])
            for entry in batch:
                found = looked.get(entry.path)
                if found is True:
                    found = answers.get(self._key_of(entry.path))
                yield entry, found if isinstance(found, Problem) else None

    def _look(self, entry: Entry) -> bool | Problem:
        """Whether it stands there, and is what was listed."""
        try:
            head = self._requests.ask("HEAD", self._key_of(entry.path), accept=(404,))
        except HibaliError as problem:
            return problem_of(problem, denied=True)
        if head.status == 404:
            return False
        same = (
            head.etag == entry.etag if entry.etag else head.headers.get("content-length") == str(entry.size)
        )
        return True if same else Problem("target-changed", "it is no longer what was listed, so it stays")

    def remove_keys(self, keys: list[bytes]) -> _Answers:
        """Remove whole keys; a problem for each that stayed."""
        plain = [key for key in keys if s3_xml.is_plain(key)] if self._in_batches else []
        answers: _Answers = {}
        for start in range(0, len(plain), _BATCH):
            answers.update(self._remove_batch(plain[start : start + _BATCH]))
        rest = [key for key in keys if key not in answers]
        answers.update(zip(rest, self._pool.map(self._remove_one, rest), strict=True))
        return answers

    def _remove_batch(self, keys: list[bytes]) -> _Answers:
        """None of them where the server cannot do this."""
        body = s3_xml.delete_document(keys)
        checksum = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"Content-MD5": checksum, "Content-Type": "application/xml"}
        try:
            answer = self._requests.ask("POST", query={"delete": ""}, headers=headers, body=body)
        except IncompleteError:
            self._in_batches = False
            return {}
        answers: _Answers = dict.fromkeys(keys)
        for error in s3_xml.children(s3_xml.parse(answer.body, self._requests.about), "Error"):
            key = s3_xml.key_bytes(s3_xml.text(error, "Key"), encoded=False)
            if key in answers:
                problem = error_of(400, s3_xml.text(error, "Code"), self._requests.about)
                answers[key] = Problem(problem.code, problem.message)
        return answers

    def _remove_one(self, key: bytes) -> Problem | None:
        try:
            self._requests.ask("DELETE", key, accept=(404,))
        except HibaliError as problem:
            return problem_of(problem, denied=True)
        return None
