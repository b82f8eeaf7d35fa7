"""Large objects in parts: how large, sent one by one with their own sha256, completed or aborted."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping

from hibali.errors import IncompleteError
from transfers.stores import s3_xml
from transfers.stores.s3_errors import code_in, error_of
from transfers.stores.s3_requests import CHECKSUM, Requests, checksum_of

MOST_PARTS = 9500  # the protocol allows 10,000
LEAST_BYTES = 5 * 1024 * 1024  # of any part but the last (Amazon S3 user guide, "multipart upload limits")


def part_bytes(size: int, segment: int) -> int:
    """How large the parts of an object of `size` bytes are, when it comes in segments of `segment` bytes."""
    wanted = max(LEAST_BYTES, -(-size // MOST_PARTS))
    return max(1, -(-wanted // segment)) * segment


class Upload:
    """One multipart upload. `send` may be called by several threads at once; the rest by one."""

    def __init__(
        self, requests: Requests, key: bytes, metadata: Mapping[str, str], *, checksum: bool, proves: bool
    ) -> None:
        """Begin it: nothing is seen of it before `complete`. With `checksum` each part has one that the server checks.
        Where that server `proves` nothing, `claimed` tells whether the ETag of each part was its MD5.
        """
        self._requests = requests
        self._key = key
        self._checksum = checksum
        headers = {f"x-amz-meta-{name}": value for name, value in metadata.items()}
        answer = requests.ask("POST", key, query={"uploads": ""}, headers=headers)
        self.identifier = s3_xml.text(s3_xml.parse(answer.body, requests.about), "UploadId")
        if not self.identifier:
            raise IncompleteError("refused-by-server", "the server gave no upload id", about=requests.about)
        self.claimed = not proves
        self._etags: dict[int, str] = {}
        self._size = 0
        self._lock = threading.Lock()

    def send(self, number: int, content: bytes) -> None:
        """Send part `number`, counted from 1."""
        query = {"partNumber": str(number), "uploadId": self.identifier}
        sha256 = hashlib.sha256(content).hexdigest()
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() if self.claimed else ""
        headers = {CHECKSUM: checksum_of(sha256)} if self._checksum else {}
        answer = self._requests.ask(
            "PUT", self._key, query=query, headers=headers, body=content, sha256=sha256
        )
        with self._lock:
            self._etags[number] = answer.etag
            self.claimed = self.claimed and answer.etag == md5
            self._size += len(content)

    def complete(self) -> str:
        """Make it the object; its ETag as it is looked up, for that of the answer is another at some servers (rclone)."""
        self._complete()
        head = self._requests.ask("HEAD", self._key)
        if head.headers.get("content-length") != str(self._size):
            raise IncompleteError(
                "corrupt",
                "the object is not as large as its parts",
                about=self._requests.about,
                transient=True,
            )
        return head.etag

    def _complete(self) -> None:
        """An error may come with status 200 (Amazon S3 API reference, CompleteMultipartUpload)."""
        etags = [self._etags[number] for number in range(1, len(self._etags) + 1)]
        query = {"uploadId": self.identifier}
        body = s3_xml.complete_document(etags)
        answer = self._requests.ask("POST", self._key, query=query, body=body, accept=(404,))
        if answer.status == 404:
            self._find_completed(code_in(answer.body))
            return
        root = s3_xml.parse(answer.body, self._requests.about)
        if s3_xml.name_of(root) == "Error":
            raise error_of(500, code_in(answer.body), self._requests.about)

    def _find_completed(self, code: str) -> None:
        """The upload is gone: it may be that it was completed before, and the answer lost on the way."""
        head = self._requests.ask("HEAD", self._key, accept=(404,))
        same = head.headers.get("content-length") == str(self._size)
        if head.status >= 300 or not same or not head.etag.endswith(f"-{len(self._etags)}"):
            raise error_of(404, code, self._requests.about)

    def abort(self) -> None:
        """Give it up; what was sent is no longer stored or billed."""
        abort(self._requests, self._key, self.identifier)


def abort(requests: Requests, key: bytes, identifier: str) -> None:
    """Abort an upload; one that is gone is done."""
    requests.ask("DELETE", key, query={"uploadId": identifier}, accept=(404,))
