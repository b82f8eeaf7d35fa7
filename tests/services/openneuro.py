"""A test double of OpenNeuro for uploads to drafts: the API's grant of a token, the worker's git repositories, and its annex.

The server needs MongoDB, Redis, Elasticsearch and more, and its worker Python 3.13. The repositories are real ones behind `git http-backend`.

| requests | follow, in OpenNeuro 4.51 (packages/openneuro-server, services/datalad) |
|---|---|
| POST /crn/graphql, prepareRepoAccess | graphql/resolvers/git.ts, graphql/permissions.ts, libs/authentication/jwt.ts |
| /git/N/DATASET/info/refs, git-upload-pack, git-receive-pack | handlers/git.py; hooks/pre-receive without the check of BIDS names |
| HEAD, GET, POST and DELETE of /git/N/DATASET/annex/KEY | handlers/annex.py, common/stream.py, middleware/auth.py |

It is no kinder: an upload that breaks off leaves the part that arrived under the key (uvicorn and falcon end the stream silently),
HEAD tells no length, GET knows no ranges, POST replaces nothing, and a key that expired is taken for no login at all.
Where it differs from the worker's handlers under uvicorn, it is stricter: a refused upload ends the connection instead of being read to its end.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.services.rest import Reply, Request, RestDouble, Route

DATASET = "ds004321"
KEY = "api-key-of-the-test"
_SECRET = b"secret of the server"
_REALM = {"WWW-Authenticate": 'Basic realm="dataset git repo"'}
_PREFIX = rf"/git/0/({DATASET})"
# tasks/dataset.py
GIT_ATTRIBUTES = """* annex.backend=SHA256E
**/.git* annex.largefiles=nothing
*.bval annex.largefiles=nothing
*.bvec annex.largefiles=nothing
*.json text eol=lf annex.largefiles=largerthan=1mb
*.tsv text eol=lf annex.largefiles=largerthan=1mb
phenotype/*.tsv annex.largefiles=anything
dataset_description.json annex.largefiles=nothing
.bidsignore annex.largefiles=nothing
CHANGES text eol=lf annex.largefiles=nothing
README* text eol=lf annex.largefiles=nothing
LICENSE* text eol=lf annex.largefiles=nothing
"""
_HOOK = """#!/bin/sh
while read old new ref; do
    case $ref in
    refs/heads/main | refs/heads/master | refs/heads/git-annex) ;;
    *) echo "Only 'master', 'main', or 'git-annex' branches are accepted."; exit 1 ;;
    esac
    [ "$ref" = refs/heads/git-annex ] && continue
    if git rev-list --objects $new --not --all | cut -d' ' -f1 | git cat-file --batch-check='%(objectsize)' | awk '$1 > 10485760 {exit 1}'; then :; else
        echo "Your push was rejected because it contains files larger than 10MB."; exit 1
    fi
    if git ls-tree -r --name-only $new | grep -E '(^|/)\\.' | grep -vE '^(\\.bidsignore|\\.gitattributes|\\.datalad/.*)$'; then
        echo "Filenames beginning with . except for .bidsignore or DataLad repo settings are not allowed"; exit 1
    fi
done
"""


class OpenNeuro(RestDouble):
    """OpenNeuro with the draft of one dataset.

    Attributes:
        repository: Its repository, with a work tree, as the worker has it.
        keys: The API keys that are valid.
        key_file: A file with one of them.
        is_public: Whether anyone may read the dataset.
        cut: Called with the key and the bytes so far of an upload; if it returns true, the connection ends there.
        posts: The key and the status of each upload; 0 for one that broke off.
        arriving: The files of uploads that did not end yet.
        deleted: The keys of DELETE.
        answer: Called with a key and the answer to its GET; what it returns is sent, as by a proxy in between, or by the handler
            after the content was dropped (303 to the object store).
        logins: How many tokens were issued.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="openneuro-")
        self.repository = Path(self._folder.name, DATASET)
        self.keys = {KEY}
        self.key_file = Path(self._folder.name, "key")
        self.key_file.write_text(KEY)
        self.is_public = False
        self.cut: Callable[[str, int], bool] = lambda key, size: False  # noqa: ARG005
        self.posts: list[tuple[str, int]] = []
        self.arriving: set[str] = set()
        self.deleted: list[str] = []
        self.answer: Callable[[str, Reply], Reply] = lambda key, reply: reply  # noqa: ARG005
        self.logins = 0
        self._expired: set[str] = set()
        self._issued: set[str] = set()
        self._make()
        super().__init__()

    def _make(self) -> None:
        self.repository.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "receive.denyCurrentBranch", "updateInstead")
        self.git("config", "http.receivepack", "true")
        (self.repository / ".gitattributes").write_text(GIT_ATTRIBUTES)
        (self.repository / ".datalad").mkdir()
        (self.repository / ".datalad/config").write_text('[datalad "dataset"]\n\tid = 1\n')
        self.commit("[OpenNeuro] Dataset created")
        hook = self.repository / ".git/hooks/pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(_HOOK)
        hook.chmod(0o755)

    def git(self, *words: str, stdin: bytes = b"") -> str:
        """Run git in the repository and return what it prints."""
        return subprocess.run(
            ["git", "-c", "user.name=Git Worker", "-c", "user.email=git@openneuro.org", *words],
            cwd=self.repository,
            env=_plain_environment(),
            input=stdin,
            capture_output=True,
            check=True,
        ).stdout.decode()

    def commit(self, message: str) -> None:
        """Commit the work tree, as the server does after a change through its page."""
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    def open_paths(self) -> str:
        return r".*"

    def routes(self) -> list[tuple[str, str, Route]]:
        annex = rf"{_PREFIX}/annex/([^/]+)"
        git = rf"{_PREFIX}/(info/refs|git-upload-pack|git-receive-pack)"
        return [
            ("POST", r"/crn/graphql", self._graphql),
            ("GET", git, self._git_request),
            ("POST", git, self._git_request),
            ("HEAD", annex, self._head),
            ("GET", annex, self._get),
            ("POST", annex, self._post),
            ("DELETE", annex, self._delete),
        ]

    # Tokens

    def expire_tokens(self) -> None:
        """Let all tokens of the repository that were issued so far be expired."""
        with self.guard:
            self._expired |= self._issued

    def _graphql(self, request: Request, _: re.Match[str]) -> Reply:
        asked = request.json()
        header, cookie = request.headers.get("Authorization") or "", request.headers.get("Cookie") or ""
        key = header[7:] or cookie.partition("accessToken=")[2].partition(";")[0]  # jwtFromRequest
        if "prepareRepoAccess" not in asked["query"]:
            return Reply(400, {"errors": [{"message": "the double has no such query"}]})
        if DATASET not in (asked.get("variables") or {}).values():
            return self._no_access("Dataset ds999999 does not exist.")
        if key not in self.keys and not self.is_public:
            return self._no_access("You do not have access to read this dataset.")
        scopes = ["dataset:git:read"] + (["dataset:git:write"] if key in self.keys else [])
        with self.guard:
            self.logins += 1
            token = self._token(scopes)
            self._issued.add(token)
        return Reply(content={"data": {"prepareRepoAccess": {"token": token, "endpoint": 0}}})

    def _no_access(self, message: str) -> Reply:
        return Reply(content={"errors": [{"message": message}], "data": {"prepareRepoAccess": None}})

    def _token(self, scopes: list[str]) -> str:
        claims = {
            "sub": "1",
            "email": "ada@example.org",
            "name": "Ada",
            "scopes": scopes,
            "dataset": DATASET,
            "iat": int(time.time()),
            "exp": int(time.time()) + 604800,
            "number": self.logins,
        }
        head = f"{_text64(json.dumps({'alg': 'HS256', 'typ': 'JWT'}))}.{_text64(json.dumps(claims))}"
        return f"{head}.{_base64(hmac.digest(_SECRET, head.encode(), 'sha256'))}"

    def _refusal(self, request: Request, *, write: bool = False) -> Reply | None:
        """Return the answer to a request without the right token; see middleware/auth.py and handlers/git.py."""
        kind, _, value = (request.headers.get("Authorization") or "").partition(" ")
        if not value:
            return self._plain(401, b"Authentication required for git access")
        token = base64.b64decode(value).decode().split(":")[1] if kind.lower() == "basic" else value
        if token not in self._issued:
            return Reply(400, b"Token malformed and could not be decoded")
        if token in self._expired:
            return Reply(401, b"Token expired")
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        if write and "dataset:git:write" not in claims["scopes"]:
            return self._plain(403, b"You do not have permission to access this dataset")
        return None

    def _plain(self, status: int, text: bytes = b"") -> Reply:
        return Reply(status, text, _REALM)

    # The annex

    def object_path(self, key: str) -> Path:
        """Return where the content of a key is, by git-annex's mixed hash."""
        word = struct.unpack("<I", hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4])[0]
        letters = ["0123456789zqjxkmvwgpfZQJXKMVWGPF"[(word >> (6 * at)) & 31] for at in range(4)]
        folders = letters[1] + letters[0], letters[3] + letters[2]
        return self.repository.joinpath(".git/annex/objects", *folders, key, key)

    def _head(self, request: Request, found: re.Match[str]) -> Reply:
        return self._refusal(request) or self._plain(200 if self.object_path(found[2]).exists() else 404)

    def _get(self, request: Request, found: re.Match[str]) -> Reply:
        refusal = self._refusal(request)
        path = self.object_path(found[2])
        if refusal is not None or not path.exists():
            return self.answer(found[2], refusal or self._plain(404))
        return self.answer(found[2], Reply(200, _pieces(path), _REALM, size=path.stat().st_size))

    def _post(self, request: Request, found: re.Match[str]) -> Reply:
        key, path = found[2], self.object_path(found[2])
        refusal = self._refusal(request, write=True)
        if refusal is None and path.exists():
            refusal = self._plain(409)
        if refusal is not None:
            self.posts.append((key, refusal.status))
            return refusal
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = False
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            self.arriving.add(part.name)
            try:
                for piece in _arriving(request):
                    part.write(piece)
                    if self.cut(key, part.tell()):
                        raise ConnectionError("the double ends the connection")
                whole = True
            finally:
                part.flush()
                self.received.add(key, part.tell())
                Path(part.name).replace(path)  # also what is not whole
                self.posts.append((key, 200 if whole else 0))
                self.arriving.discard(part.name)
        return self._plain(200)

    def _delete(self, request: Request, found: re.Match[str]) -> Reply:
        refusal = self._refusal(request, write=True)
        if refusal is None:
            self.deleted.append(found[2])
            self.object_path(found[2]).unlink(missing_ok=True)
        return refusal or Reply(204, None, _REALM)

    # git

    def _git_request(self, request: Request, found: re.Match[str]) -> Reply:
        service = request.query.get("service", found[2])
        refusal = self._refusal(request, write=found[2] == "git-receive-pack")
        if refusal is not None:
            return refusal
        environment = {
            **_plain_environment(),
            "GIT_PROJECT_ROOT": self._folder.name,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "ada",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": f"/{DATASET}/.git/{found[2]}",
            "QUERY_STRING": f"service={service}" if "service" in request.query else "",
            "CONTENT_TYPE": request.headers.get("Content-Type") or "",
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding") or "",
        }
        body = _chunked(request) if request.headers.get("Transfer-Encoding") == "chunked" else request.body()
        if found[2] == "git-receive-pack" and body[4:11] == b"shallow":
            return Reply(500, b"ValueError")  # _parse_commit of handlers/git.py
        environment["CONTENT_LENGTH"] = str(len(body))
        ended = subprocess.run(
            ["git", "http-backend"], env=environment, input=body, capture_output=True, check=True
        )
        head, _, content = ended.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(fields.pop("Status", "200 OK").split()[0])
        return Reply(status, content, fields)


def _plain_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def _chunked(request: Request) -> bytes:
    """Read a body in chunks, as git sends large packs."""
    body = b""
    while size := int(request.stream.readline().split(b";")[0], 16):
        body += request.stream.read(size)
        request.stream.readline()
    request.stream.readline()
    return body


def _arriving(request: Request) -> Iterator[bytes]:
    """Yield a body as it arrives, so that what came before a reset is kept."""
    while request.length > 0:
        piece = request.stream.read1(min(1 << 16, request.length))  # type: ignore[attr-defined]
        if not piece:
            raise ConnectionError("the client ended")
        request.length -= len(piece)
        yield piece


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _text64(text: str) -> str:
    return _base64(text.encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def key_table(double: OpenNeuro, **more: Any) -> str:
    """Return the lines of config.toml of a site with this draft."""
    lines = [
        f'dataset = "{DATASET}"',
        f'url = "{double.url}"',
        f'token_command = ["cat", "{double.key_file}"]',
    ]
    lines += [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    return 'kind = "openneuro"\n[sites.{name}.openneuro]\n' + "\n".join(lines) + "\n"
