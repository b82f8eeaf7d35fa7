"""Create storage backends to which a test transfers data, and access them without hibali: as plain files, or
by botocore for S3."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.services.archives import Published, ZenodoArchive
from tests.services.cbrain_contents import BucketContents
from tests.services.openneuro import OpenNeuro, key_table
from tests.support.trees import File, Leaf, Link, Tree, flip_byte, make_tree, read_tree, walk_paths
from tests.support.web_server import WebServer

OWN_KEYS = ".hibali/"
_APACHE_FILES = re.compile(rb"(^|/)\.(DAV|davfs\.tmp[^/]*)(/|$)")
_PRINT_LOGIN = "import json, os, sys; print(json.dumps({'username': sys.argv[1], 'password': os.environ['TEST_DAV_SECRET']}))"
PROBE = b".hibali/probe/"
# a lost connection only raises its error; test_lost_connections.py and test_server_outages.py test reconnecting
_LIMITS = '[sites.{name}.limits]\nreconnect = "0s"\n'
OBJECT_STORES = {
    "s3": "object_store",
    "s3-rclone": "rclone_s3",
    "s3-swift": "swift",
    "s3-ceph": "ceph",
}  # servers, by their fixtures
DAV_SERVERS = {
    "webdav": "webdav_server",
    "webdav-plain": "plain_webdav_server",
    "webdav-lighttpd": "lighttpd_server",
}  # likewise
PARTIAL = re.compile(rb"(.*/)?\.hibali-[0-9a-f]{32}(/.*)?", re.DOTALL)


def is_own_key(name: bytes) -> bool:
    """Return whether the name belongs to hibali: each earlier target folder has its own `.hibali/`."""
    return b"/.hibali/" in b"/" + name


class Backend(Protocol):
    """A new root for one test, which becomes a site; names are bytes below the folder `path` of that root."""

    word: str  # the kind of store: the name of its module
    env: dict[str, str]  # variables and secrets for hibali
    holds_folders: bool
    holds_links: bool
    endpoint: str = ""  # the URL of its server, as in its table
    page = 1000  # the largest number of names in one page of a listing
    by_path = False  # whether the store itself accesses the backend as a folder
    snapshots = False  # whether the store reads what it received when it listed it

    def table(self) -> str:
        """Return TOML for `[sites.NAME]` and nested tables, with `{name}` for NAME."""

    def names(self, path: str) -> set[bytes]:
        """Return every name there, including hibali's own; folders only where the store has folders."""

    def files(self, path: str) -> dict[bytes, bytes]:
        """Return the content of every file that is not hibali's own."""

    def unfinished(self, path: str) -> set[bytes]:
        """Return partial files, and uploads that were not completed."""

    def versions(self, path: str) -> dict[bytes, object]:
        """Return a value for each file that changes with the file: inode and mtime, or ETag."""

    def read(self, path: str, name: bytes) -> bytes | None:
        """Return the current content, None if absent."""

    def plant(self, path: str, tree: Tree) -> None:
        """Create the tree there."""

    def remove(self, path: str, name: bytes) -> None:
        """Remove the file."""

    def corrupt(self, path: str, name: bytes) -> None:
        """Change one byte; the size, and the mtime if there is one, stay the same."""

    def unreachable_table(self, port: int) -> str | None:
        """Return the table of the same site at a port without a server; None if it has no server."""
        return self.table().replace(self.endpoint, f"http://127.0.0.1:{port}") if self.endpoint else None

    def denied_table(self) -> str | None:
        """Return the table of the same site with a wrong login, or its own after its server was told to refuse it; None without logins."""
        return self.table() if self.endpoint else None

    def close(self) -> None:
        """End the server that was made for this backend."""


class FolderBackend(Backend):
    """A folder of this machine, accessed as a local site or through sshd; the folder of a server is a subclass."""

    holds_folders = True
    holds_links = True

    def __init__(self, word: str, root: Path, server: Any = None) -> None:
        self.word = word
        self.root = root
        self.env: dict[str, str] = {}
        self.server = server
        self.command = list(server.command) if server else []
        root.mkdir(parents=True, exist_ok=True)

    def table(self) -> str:
        roots = f'default_root = "data"\n[sites.{{name}}.roots]\ndata = {json.dumps(str(self.root))}\n'
        if self.server is None:
            return f'kind = "local"\n{roots}'
        return (
            f'kind = "ssh"\n{roots}[sites.{{name}}.ssh]\nhost = "{self.server.host}"\n'
            f"command = {json.dumps(self.command)}\n"
            f'transport = "{"sftp" if self.word == "sftp" else "agent"}"\n'
            '[sites.{name}.limits]\nlogin_interval = "0s"\nreconnect = "0s"\n'
        )

    @property
    def by_path(self) -> bool:
        return type(self) is FolderBackend

    def unreachable_table(self, port: int) -> str | None:
        return self._with_ssh_option(f"Port={port}") if self.by_path else super().unreachable_table(port)

    def denied_table(self) -> str | None:
        return self._with_ssh_option("PubkeyAuthentication=no") if self.by_path else super().denied_table()

    def _with_ssh_option(self, option: str) -> str | None:
        """Return the table with one more option of ssh(1); None without ssh."""
        given = json.dumps(self.command)
        return (
            self.table().replace(given, json.dumps([*self.command, "-o", option])) if self.command else None
        )

    def at(self, path: str) -> Path:
        return self.root / path

    def names(self, path: str) -> set[bytes]:
        return {name for name, _ in walk_paths(self.at(path))}

    def files(self, path: str) -> dict[bytes, bytes]:
        return {name: leaf for name, leaf in self.tree(path).items() if isinstance(leaf, bytes)}

    def tree(self, path: str) -> dict[bytes, Leaf]:
        found = read_tree(self.at(path)) if self.at(path).exists() else {}
        return {name: leaf for name, leaf in found.items() if not name.startswith(OWN_KEYS.encode())}

    def unfinished(self, path: str) -> set[bytes]:
        return {name for name in self.names(path) if PARTIAL.fullmatch(name)}

    def versions(self, path: str) -> dict[bytes, object]:
        found: dict[bytes, object] = {}
        with contextlib.suppress(FileNotFoundError):
            for name, status in walk_paths(self.at(path)):
                if stat.S_ISREG(status.st_mode):
                    found[name] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return found

    def read(self, path: str, name: bytes) -> bytes | None:
        try:
            return (self.at(path) / os.fsdecode(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def plant(self, path: str, tree: Tree) -> None:
        make_tree(self.at(path), tree)

    def remove(self, path: str, name: bytes) -> None:
        full = self.at(path) / os.fsdecode(name)
        if full.is_dir() and not full.is_symlink():
            shutil.rmtree(full)
        else:
            full.unlink()

    def corrupt(self, path: str, name: bytes) -> None:
        flip_byte(self.at(path) / os.fsdecode(name))


class WebBackend(FolderBackend):
    """A folder of this machine behind a web server, which is only read through it."""

    holds_links = False

    def __init__(self, word: str, root: Path) -> None:
        super().__init__(word, root)
        self.server = WebServer(root)
        self.endpoint = self.server.url

    def table(self) -> str:
        return f'kind = "url"\nurl = "{self.endpoint}"\n{_LIMITS}'

    def denied_table(self) -> str:
        self.server.wanted = "a login of no account"
        return self.table()

    def close(self) -> None:
        self.server.close()


class ArchiveBackend(FolderBackend):
    """A folder of this machine as a dataset in the double of Zenodo, which is only read; it has no folders of its own."""

    holds_folders = False
    holds_links = False

    def __init__(self, word: str, root: Path) -> None:
        super().__init__(word, root)
        self.double = ZenodoArchive([])
        self.endpoint = self.double.url
        (root / "LICENSE").touch()  # a dataset has files
        self._deposit()

    def table(self) -> str:
        return f'kind = "doi"\n{_LIMITS}[sites.{{name}}.doi]\nname = "{self.double.doi}"\nurl = "{self.endpoint}"\n'

    def plant(self, path: str, tree: Tree) -> None:
        super().plant(path, tree)
        self._deposit()

    def remove(self, path: str, name: bytes) -> None:
        super().remove(path, name)
        self._deposit()

    def corrupt(self, path: str, name: bytes) -> None:
        """Change what is stored; the archive's checksum stays that of what was deposited."""
        super().corrupt(path, name)
        self._store()

    def _deposit(self) -> None:
        names = (name for name, status in walk_paths(self.root) if stat.S_ISREG(status.st_mode))
        self.double.files[:] = [
            Published(os.fsdecode(name), (self.root / os.fsdecode(name)).read_bytes()) for name in names
        ]
        self._store()

    def _store(self) -> None:
        contents = ((self.root / file.path).read_bytes() for file in self.double.files)
        self.double.blobs.contents = {str(number): each for number, each in enumerate(contents)}

    def denied_table(self) -> str:
        self.double.fail("status", "GET", status=403, times=10**6)
        return self.table()

    def close(self) -> None:
        self.double.close()


class DraftBackend(FolderBackend):
    """The work tree of a repository in the double of OpenNeuro, as the draft of a dataset, which is only read.

    A call is one commit there: test_drafts.py tests writing.
    """

    holds_folders = False
    holds_links = False
    snapshots = True  # the draft is fetched once

    def __init__(self, word: str, folder: Path) -> None:
        del folder
        self.double = OpenNeuro()
        self.endpoint = self.double.url
        super().__init__(word, self.double.repository)

    def table(self) -> str:
        return key_table(self.double).replace("\n", f"\n{_LIMITS}", 1)

    def tree(self, path: str) -> dict[bytes, Leaf]:
        """Return the files with the contents at which they point."""
        self.double.git("checkout", "--quiet", "--force", "main")
        folder = self.at(path)
        names = (name for name, status in walk_paths(folder) if not stat.S_ISDIR(status.st_mode))
        kept = (name for name in names if path or not name.startswith((b".git", b".datalad")))
        return {name: (folder / os.fsdecode(name)).read_bytes() for name in kept}

    def names(self, path: str) -> set[bytes]:
        return set(self.tree(path)) if self.at(path).exists() else set()

    def versions(self, path: str) -> dict[bytes, object]:
        lines = self.double.git("ls-tree", "-r", "-z", f"main:{path}").split("\0")[:-1]
        return {os.fsencode(line.partition("\t")[2]): line.split()[2] for line in lines}

    def plant(self, path: str, tree: Tree) -> None:
        super().plant(path, tree)
        self.double.commit("planted")

    def remove(self, path: str, name: bytes) -> None:
        super().remove(path, name)
        self.double.commit("removed")

    def corrupt(self, path: str, name: bytes) -> None:
        super().corrupt(path, name)
        self.double.commit("corrupted")

    def denied_table(self) -> str:
        self.double.keys = {"another"}
        self.double.expire_tokens()
        return self.table()

    def close(self) -> None:
        self.double.close()


class GlobusBackend(FolderBackend):
    """A folder shown by a collection of the Globus double, also over HTTPS; only tasks write to it.

    tests/plugins/globus/test_login.py and test_faults.py test refused logins and servers that are away.
    """

    holds_links = False

    def __init__(self, word: str, root: Path, world: Any, **facts: Any) -> None:
        super().__init__(word, root)
        self._client = world.client_id
        self._collection = world.make_collection(root, https=True, **facts).id
        self.env = {**world.env, "TEST_GLOBUS_SECRET": world.client_secret}

    def table(self) -> str:
        return (
            'kind = "globus"\ndefault_root = "data"\n[sites.{name}.roots]\ndata = "/"\n'
            f'[sites.{{name}}.globus]\ncollection = "{self._collection}"\nhttps = true\n'
            f'client_id = "{self._client}"\nsecret_variable = "TEST_GLOBUS_SECRET"\n'
        )


class CbrainBackend(FolderBackend):
    """A collection at the double of a CBRAIN portal, which is only read; test_cbrain.py tests writing."""

    prefix = "@lab/"  # of paths there
    snapshots = True  # a collection is received as one archive

    def __init__(self, word: str, portal: Any) -> None:
        provider = portal.add_provider("lab")
        super().__init__(word, provider.contents.root)
        self.endpoint = portal.url
        self._portal, self._provider = portal, provider
        self.env = {"TEST_CBRAIN_SECRET": portal.users[0].password}

    def table(self) -> str:
        return (
            f'kind = "cbrain"\n{_LIMITS}[sites.{{name}}.cbrain]\nurl = "{self.endpoint}"\nlogin = "me"\n'
            'password_command = ["printenv", "TEST_CBRAIN_SECRET"]\n'
        )

    def plant(self, path: str, tree: Tree) -> None:
        """Create the tree, and register what is at the top."""
        super().plant(path, tree)
        tops = [path.partition("/")[0]] if path else [os.fsdecode(name).partition("/")[0] for name in tree]
        for top in tops:
            if top not in self._portal.named(self._provider):
                self._portal.register(self._provider, top)

    def denied_table(self) -> str:
        self._portal.users[0].password = "planted-secret-2"
        self._portal.expire_tokens()
        return self.table()


class FsspecFolderBackend(FolderBackend):
    """A folder of this machine behind fsspec's local filesystem."""

    holds_links = False

    def table(self) -> str:
        return f'kind = "fsspec"\n{_LIMITS}[sites.{{name}}.fsspec]\nurl = "file://{self.root}"\n'


class XRootDBackend(FolderBackend):
    """A folder of this machine behind an XRootD server, which reports times in whole seconds."""

    holds_links = False
    tick = 1.1

    def __init__(self, word: str, server: Any) -> None:
        name = secrets.token_hex(8)
        super().__init__(word, Path(server.root) / name)
        self.endpoint = server.url
        self.url = f"{self.endpoint}//{name}"

    def table(self) -> str:
        return f'kind = "fsspec"\n{_LIMITS}[sites.{{name}}.fsspec]\nurl = "{self.url}"\n'

    def unreachable_table(self, port: int) -> str:
        return self.table().replace(self.endpoint, f"root://127.0.0.1:{port}")

    def denied_table(self) -> None:
        """See Backend: the server has no logins."""


_SERVICES = {
    "unicore": "",
    "firecrest": 'system = "daint"\n',
    "iri": "",
}  # with what the table needs beside a URL and a token


class ServiceBackend(FolderBackend):
    """A folder of a machine behind the double of a REST service, whose name is `word`; times there are whole seconds."""

    holds_links = False
    tick = 1.1
    keeps_lock_folder = True  # where only a whole tree can be removed

    def __init__(self, word: str, double: Any, more: str = "") -> None:
        super().__init__(word, double.home / "contract data")
        self.double = double
        self.endpoint = double.origin
        self.env = {"TEST_SERVICE_SECRET": double.token}
        self._more = more

    def table(self) -> str:
        return (
            f'kind = "{self.word}"\ndefault_root = "data"\n'
            f"[sites.{{name}}.roots]\ndata = {json.dumps(str(self.root))}\n{_LIMITS}requests = 2000\n"
            f'[sites.{{name}}.{self.word}]\nurl = "{self.double.url}"\n'
            f'token_variable = "TEST_SERVICE_SECRET"\n{self._more}'
        )

    def denied_table(self) -> str:
        self.double.token = "another"
        return self.table()


class FsspecMemoryBackend(Backend):
    """A folder of fsspec's memory filesystem, which is that of this process."""

    word = "fsspec"
    holds_folders = True
    holds_links = False

    def __init__(self) -> None:
        from fsspec.implementations.memory import MemoryFileSystem

        self.env: dict[str, str] = {}
        self.root = f"/{secrets.token_hex(8)}"
        self.memory = MemoryFileSystem()
        self.memory.makedirs(self.root)

    def table(self) -> str:
        return f'kind = "fsspec"\n{_LIMITS}[sites.{{name}}.fsspec]\nurl = "memory:/{self.root}"\n'

    def _below(self, path: str) -> str:
        return f"{self.root}/{path}/" if path else f"{self.root}/"

    def _contents(self, path: str) -> dict[bytes, bytes]:
        start = self._below(path)
        found = {name: file for name, file in tuple(self.memory.store.items()) if name.startswith(start)}
        return {os.fsencode(name[len(start) :]): file.getvalue() for name, file in found.items()}

    def names(self, path: str) -> set[bytes]:
        start = self._below(path)
        files = self._contents(path)
        folders = {name[len(start) :] for name in self.memory.pseudo_dirs if name.startswith(start)}
        above = {parent for name in files for parent in _parents(name)}
        return {*files, *map(os.fsencode, folders), *above}

    def files(self, path: str) -> dict[bytes, bytes]:
        return {name: content for name, content in self._contents(path).items() if not is_own_key(name)}

    def unfinished(self, path: str) -> set[bytes]:
        return {name for name in self.names(path) if PARTIAL.fullmatch(name)}

    def versions(self, path: str) -> dict[bytes, object]:
        start = self._below(path)
        return {
            os.fsencode(name[len(start) :]): (file.created, file.size)
            for name, file in tuple(self.memory.store.items())
            if name.startswith(start)
        }

    def read(self, path: str, name: bytes) -> bytes | None:
        found = self.memory.store.get(self._below(path) + os.fsdecode(name))
        return None if found is None else found.getvalue()

    def plant(self, path: str, tree: Tree) -> None:
        self.memory.makedirs(self._below(path), exist_ok=True)
        for name, leaf in tree.items():
            full = self._below(path) + os.fsdecode(name)
            if isinstance(leaf, (bytes, File)):
                self.memory.pipe_file(full, leaf if isinstance(leaf, bytes) else leaf.content)
            else:
                assert not isinstance(leaf, Link), "fsspec makes no links"
                self.memory.makedirs(full, exist_ok=True)

    def remove(self, path: str, name: bytes) -> None:
        full = self._below(path) + os.fsdecode(name)
        for each in [each for each in self.memory.store if each == full or each.startswith(f"{full}/")]:
            del self.memory.store[each]

    def corrupt(self, path: str, name: bytes) -> None:
        file = self.memory.store[self._below(path) + os.fsdecode(name)]
        with file.getbuffer() as content:
            content[len(content) // 2] ^= 1


def _parents(name: bytes) -> set[bytes]:
    parts = name.split(b"/")
    return {b"/".join(parts[:count]) for count in range(1, len(parts))}


def dav_servers() -> list[Any]:
    """Return WebDAV on all of its servers, as parameters of a fixture; all but Apache are `heavy`."""
    heavy = pytest.mark.heavy
    return [word if word == "webdav" else pytest.param(word, marks=heavy) for word in DAV_SERVERS]


class DavBackend(FolderBackend):
    """A fresh folder on a WebDAV server. Apache keeps properties and incoming files under hidden names."""

    holds_links = False

    def __init__(self, word: str, server: Any) -> None:
        name = secrets.token_hex(8)
        super().__init__(word, Path(server.root) / name)
        self.dav = server
        self.endpoint = server.url.replace("http:", "dav:")
        self.url = f"{self.endpoint}/{name}"
        if server.login is not None:
            self.env = {"TEST_DAV_SECRET": server.login[1]}

    def table(self) -> str:
        words = json.dumps([sys.executable, "-c", _PRINT_LOGIN, self.dav.login[0]]) if self.dav.login else ""
        login = f"credentials_command = {words}\n" if words else ""
        return f'kind = "url"\nurl = "{self.url}"\n{login}{_LIMITS}'

    def unreachable_table(self, port: int) -> str:
        return self.table().replace(self.endpoint, f"dav://127.0.0.1:{port}")

    def denied_table(self) -> str | None:
        given = "'password': "
        return self.table().replace(given, f"{given}'planted-secret' + ") if self.dav.login else None

    def names(self, path: str) -> set[bytes]:
        return {name for name in super().names(path) if not _APACHE_FILES.search(name)}

    def tree(self, path: str) -> dict[bytes, Leaf]:
        return {name: leaf for name, leaf in super().tree(path).items() if not _APACHE_FILES.search(name)}

    def versions(self, path: str) -> dict[bytes, object]:
        found = super().versions(path)
        return {name: version for name, version in found.items() if not _APACHE_FILES.search(name)}


class BucketBackend(Backend):
    """A bucket, and a prefix in it."""

    word = "s3"
    holds_folders = False
    holds_links = False

    def __init__(self, store: Any, bucket: Any) -> None:
        self.store = store
        self.bucket = bucket
        self.env = dict(store.env)
        self.endpoint = store.endpoint

    @property
    def page(self) -> int:
        return int(self.store.page)

    def table(self) -> str:
        return (
            f'kind = "s3"\n{_LIMITS}[sites.{{name}}.s3]\nendpoint = "{self.endpoint}"\n'
            f'bucket = "{self.bucket.name}"\nregion = "{self.store.region}"\n'
        )

    def _objects(self, path: str) -> dict[bytes, dict[str, Any]]:
        prefix = f"{path}/" if path else ""
        pages = self.bucket.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket.name, Prefix=prefix
        )
        return {
            found["Key"][len(prefix) :].encode(): found
            for page in pages
            for found in page.get("Contents", ())
        }

    def _key(self, path: str, name: bytes) -> str:
        return f"{path}/{name.decode()}" if path else name.decode()

    def names(self, path: str) -> set[bytes]:
        # rclone lists a name that it could not write: the too long name of hibali's probe
        return {name for name in self._objects(path) if PROBE not in name or self._exists(path, name)}

    def _exists(self, path: str, name: bytes) -> bool:
        try:
            self.bucket.client.head_object(Bucket=self.bucket.name, Key=self._key(path, name))
        except self.bucket.client.exceptions.ClientError:
            return False
        return True

    def files(self, path: str) -> dict[bytes, bytes]:
        names = [name for name in self._objects(path) if not is_own_key(name)]
        with ThreadPoolExecutor(4) as pool:
            contents = pool.map(lambda name: self.read(path, name), names)
            return {
                name: content for name, content in zip(names, contents, strict=True) if content is not None
            }

    def unfinished(self, path: str) -> set[bytes]:
        found = self.bucket.client.list_multipart_uploads(Bucket=self.bucket.name, Prefix=path)
        return {upload["Key"].encode() for upload in found.get("Uploads", ())}

    def versions(self, path: str) -> dict[bytes, object]:
        return {name: found["ETag"] for name, found in self._objects(path).items()}

    def read(self, path: str, name: bytes) -> bytes | None:
        try:
            return self.bucket.get(self._key(path, name))
        except self.bucket.client.exceptions.NoSuchKey:
            return None

    def plant(self, path: str, tree: Tree) -> None:
        def put(item: tuple[bytes, Leaf]) -> None:
            name, leaf = item
            assert not isinstance(leaf, Link), "a bucket holds no links"
            if isinstance(leaf, (bytes, File)):
                self.bucket.put(self._key(path, name), leaf if isinstance(leaf, bytes) else leaf.content)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, tree.items()))

    def remove(self, path: str, name: bytes) -> None:
        self.bucket.client.delete_object(Bucket=self.bucket.name, Key=self._key(path, name))

    def corrupt(self, path: str, name: bytes) -> None:
        key = self._key(path, name)
        head = self.bucket.client.head_object(Bucket=self.bucket.name, Key=key)
        content = bytearray(self.bucket.get(key))
        content[len(content) // 2] ^= 1
        self.bucket.client.put_object(
            Bucket=self.bucket.name, Key=key, Body=bytes(content), Metadata=head["Metadata"]
        )


class CbrainBulkBackend(BucketBackend):
    """A collection at the double of a CBRAIN portal whose data provider is a bucket, which is also a site."""

    word = "cbrain"
    prefix = "@cloud/study/"  # of paths there

    def __init__(self, store: Any, bucket: Any, portal: Any) -> None:
        super().__init__(store, bucket)
        contents = BucketContents(bucket.client, bucket.name)
        self._portal, self._provider = portal, portal.add_provider("cloud", contents=contents)
        self.env = {**self.env, "TEST_CBRAIN_SECRET": portal.users[0].password}

    def table(self) -> str:
        below = super().table().replace("[sites.{name}", "[sites.{name}-files")
        return (
            f'kind = "cbrain"\n{_LIMITS}[sites.{{name}}.cbrain]\nurl = "{self._portal.url}"\nlogin = "me"\n'
            'password_command = ["printenv", "TEST_CBRAIN_SECRET"]\n'
            '[sites.{name}.cbrain.providers]\ncloud = "{name}-files:"\n'
            f"[sites.{{name}}-files]\n{below}"
        )

    def plant(self, path: str, tree: Tree) -> None:
        """Create the tree, and register the collection."""
        super().plant(path, tree)
        if "study" in self._provider.contents.names() and not self._portal.named(self._provider):
            self._portal.register(self._provider, "study")

    def _objects(self, path: str) -> dict[bytes, dict[str, Any]]:
        return super()._objects(f"study/{path}" if path else "study")

    def _key(self, path: str, name: bytes) -> str:
        return f"study/{super()._key(path, name)}"

    def unfinished(self, path: str) -> set[bytes]:
        return super().unfinished(f"study/{path}")


class FsspecBucketBackend(BucketBackend):
    """A bucket of SeaweedFS behind fsspec's s3fs, with the keys in environment variables."""

    word = "fsspec"

    def table(self) -> str:
        return (
            f'kind = "fsspec"\n{_LIMITS}[sites.{{name}}.fsspec]\nurl = "s3://{self.bucket.name}"\n'
            f'options = {{ client_kwargs = {{ endpoint_url = "{self.endpoint}", region_name = "{self.store.region}" }} }}\n'
            'secret_variables = { key = "AWS_ACCESS_KEY_ID", secret = "AWS_SECRET_ACCESS_KEY" }\n'
        )


class EbrainsBackend(BucketBackend):
    """A bucket of SeaweedFS behind the double of the EBRAINS data proxy."""

    word = "ebrains"

    def __init__(self, double: Any, store: Any) -> None:
        super().__init__(store, store.bucket())
        self.double = double
        self.endpoint = double.url
        self.env = {"TEST_EBRAINS_SECRET": double.new_token()}
        double.add_bucket(self.bucket.name)

    def table(self) -> str:
        return (
            f'kind = "ebrains"\n{_LIMITS}[sites.{{name}}.ebrains]\nurl = "{self.endpoint}"\n'
            f'bucket = "{self.bucket.name}"\ntoken_variable = "TEST_EBRAINS_SECRET"\n'
        )

    def denied_table(self) -> str:
        self.double.expire_tokens()
        return self.table()


class CloudBackend(Backend):
    """A bucket or container of an emulator; subclasses access it by other means than fsspec."""

    word = "fsspec"
    holds_folders = False
    holds_links = False

    def __init__(self, server: Any) -> None:
        self.server = server
        self.endpoint = server.url
        self.env: dict[str, str] = {}
        self.bucket = f"test-{secrets.token_hex(6)}"

    def denied_table(self) -> str | None:
        return None

    def _list(self, prefix: str) -> dict[str, str]:
        """Return the names of the objects below a prefix, each with a tag of its version."""
        raise NotImplementedError

    def _get(self, key: str) -> bytes | None:
        raise NotImplementedError

    def _put(self, key: str, content: bytes) -> None:
        raise NotImplementedError

    def _delete(self, key: str) -> None:
        raise NotImplementedError

    def _below(self, path: str) -> dict[bytes, str]:
        prefix = f"{path}/" if path else ""
        return {key[len(prefix) :].encode(): tag for key, tag in self._list(prefix).items()}

    def _key(self, path: str, name: bytes) -> str:
        return f"{path}/{name.decode()}" if path else name.decode()

    def names(self, path: str) -> set[bytes]:
        return set(self._below(path))

    def files(self, path: str) -> dict[bytes, bytes]:
        names = [name for name in self._below(path) if not is_own_key(name)]
        with ThreadPoolExecutor(4) as pool:
            contents = pool.map(lambda name: self.read(path, name), names)
            return {name: found for name, found in zip(names, contents, strict=True) if found is not None}

    def unfinished(self, path: str) -> set[bytes]:
        return {name for name in self._below(path) if PARTIAL.fullmatch(name)}

    def versions(self, path: str) -> dict[bytes, object]:
        return dict(self._below(path))

    def read(self, path: str, name: bytes) -> bytes | None:
        return self._get(self._key(path, name))

    def plant(self, path: str, tree: Tree) -> None:
        def put(item: tuple[bytes, Leaf]) -> None:
            name, leaf = item
            assert not isinstance(leaf, Link), "a bucket holds no links"
            if isinstance(leaf, (bytes, File)):
                self._put(self._key(path, name), leaf if isinstance(leaf, bytes) else leaf.content)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, tree.items()))

    def remove(self, path: str, name: bytes) -> None:
        self._delete(self._key(path, name))

    def corrupt(self, path: str, name: bytes) -> None:
        content = bytearray(self.read(path, name) or b"")
        content[len(content) // 2] ^= 1
        self._put(self._key(path, name), bytes(content))


class GcsBackend(CloudBackend):
    """A bucket of the emulator of Google Cloud Storage, accessed by its JSON API."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._request("POST", "/storage/v1/b?project=study", json.dumps({"name": self.bucket}).encode())

    def table(self) -> str:
        return (
            f'kind = "fsspec"\n{_LIMITS}[sites.{{name}}.fsspec]\nurl = "gs://{self.bucket}"\n'
            f'options = {{ token = "anon", project = "study", endpoint_url = "{self.endpoint}" }}\n'
        )

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        headers = {
            "Content-Type": "application/json" if path.startswith("/storage") else "application/octet-stream"
        }
        request = urllib.request.Request(self.server.url + path, body, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.read()
        except urllib.error.HTTPError as problem:
            with problem:
                if problem.code == 404:
                    return None
            raise

    def _object(self, key: str) -> str:
        return f"/storage/v1/b/{self.bucket}/o/{urllib.parse.quote(key, safe='')}"

    def _list(self, prefix: str) -> dict[str, str]:
        query = urllib.parse.urlencode({"prefix": prefix, "maxResults": 100_000})
        found = json.loads(self._request("GET", f"/storage/v1/b/{self.bucket}/o?{query}") or b"{}")
        return {one["name"]: one["etag"] for one in found.get("items", ())}

    def _get(self, key: str) -> bytes | None:
        return self._request("GET", f"{self._object(key)}?alt=media")

    def _put(self, key: str, content: bytes) -> None:
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        self._request("POST", f"/upload/storage/v1/b/{self.bucket}/o?{query}", content)

    def _delete(self, key: str) -> None:
        self._request("DELETE", self._object(key))


class AzureBackend(CloudBackend):
    """A container of Azurite, accessed by Azure's own package."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        from azure.storage.blob import BlobServiceClient

        self.env = {
            "TEST_AZURE_SECRET": server.connection,
            "TEST_AZURE_NOBODY": "",
            "TEST_AZURE_WRONG": server.connection.replace(server.key, f"planted-secret{server.key[14:]}"),
        }
        self._service = BlobServiceClient.from_connection_string(server.connection)
        self._container = self._service.create_container(self.bucket)

    def table(self) -> str:
        return self._table('connection_string = "TEST_AZURE_SECRET"')

    def unreachable_table(self, port: int) -> str:
        os.environ["TEST_AZURE_NOBODY"] = self.server.connection.replace(
            self.endpoint, f"http://127.0.0.1:{port}"
        )
        return self._table('connection_string = "TEST_AZURE_NOBODY"')

    def denied_table(self) -> str:
        return self._table('connection_string = "TEST_AZURE_WRONG"')

    def _table(self, secret: str) -> str:
        return (
            f'kind = "fsspec"\n{_LIMITS}[sites.{{name}}.fsspec]\nurl = "abfs://{self.bucket}"\n'
            f"secret_variables = {{ {secret} }}\n"
        )

    def _list(self, prefix: str) -> dict[str, str]:
        return {blob.name: blob.etag for blob in self._container.list_blobs(name_starts_with=prefix)}

    def _get(self, key: str) -> bytes | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return self._container.download_blob(key).readall()
        except ResourceNotFoundError:
            return None

    def _put(self, key: str, content: bytes) -> None:
        self._container.upload_blob(key, content, overwrite=True)

    def _delete(self, key: str) -> None:
        self._container.delete_blob(key)


class HdfsBackend(CloudBackend):
    """A folder of HDFS, accessed by its REST API without fsspec."""

    holds_folders = True

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self._request("PUT", "", "MKDIRS")

    def table(self) -> str:
        address = self.endpoint.removeprefix("http://")
        return (
            f'kind = "fsspec"\n{_LIMITS}[sites.{{name}}.fsspec]\nurl = "webhdfs://{address}/{self.bucket}"\n'
            f'options = {{ user = "{self.server.account}" }}\n'
        )

    def unreachable_table(self, port: int) -> str:
        return self.table().replace(self.endpoint.removeprefix("http://"), f"127.0.0.1:{port}")

    def _request(
        self, method: str, path: str, operation: str, body: bytes | None = None, **more: str
    ) -> bytes | None:
        query = urllib.parse.urlencode({"op": operation, "user.name": self.server.account, **more})
        url = f"{self.endpoint}/webhdfs/v1/{self.bucket}/{urllib.parse.quote(path)}?{query}"
        request = urllib.request.Request(url, method=method)  # noqa: S310
        try:
            with _NO_REDIRECTS.open(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as problem:
            with problem:
                if problem.code == 307:  # the content goes to a data node
                    return self._at_data_node(method, problem.headers["Location"], url, body)
                if problem.code == 404:
                    return None
            raise

    @staticmethod
    def _at_data_node(method: str, location: str, url: str, body: bytes | None) -> bytes | None:
        # the name node writes the path in the Unicode normal form C, which names another file
        location = urllib.parse.urlsplit(location)._replace(path=urllib.parse.urlsplit(url).path).geturl()
        onwards = urllib.request.Request(location, body, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(onwards, timeout=60) as answer:  # noqa: S310
                return answer.read()
        except urllib.error.HTTPError as problem:
            with problem:
                if problem.code == 404:  # it was removed since the redirection
                    return None
            raise

    def names(self, path: str) -> set[bytes]:
        found = super().names(path)
        return {*found, *(name.encode() for name in self._folders(path, ""))}

    def _statuses(self, path: str) -> list[dict[str, Any]]:
        found = self._request("GET", path, "LISTSTATUS")
        return [] if found is None else json.loads(found)["FileStatuses"]["FileStatus"]

    def _folders(self, root: str, below: str) -> Iterator[str]:
        for one in self._statuses("/".join(filter(None, (root, below)))):
            if one["type"] == "DIRECTORY":
                name = "/".join(filter(None, (below, one["pathSuffix"])))
                yield name
                yield from self._folders(root, name)

    def _list(self, prefix: str) -> dict[str, str]:
        root = prefix.rstrip("/")
        folders = ["", *self._folders(root, "")]
        found: dict[str, str] = {}
        for folder in folders:
            path = "/".join(filter(None, (root, folder)))
            for one in self._statuses(path):
                if one["type"] == "FILE" and one["pathSuffix"]:
                    full = "/".join(filter(None, (path, one["pathSuffix"])))
                    found[full] = f"{one['fileId']} {one['modificationTime']}"
        return found

    def _get(self, key: str) -> bytes | None:
        found = self._request("GET", key, "GETFILESTATUS")
        if found is None or json.loads(found)["FileStatus"]["type"] != "FILE":
            return None
        return self._request("GET", key, "OPEN")

    def _put(self, key: str, content: bytes) -> None:
        self._request("PUT", key, "CREATE", content, overwrite="true")

    def _delete(self, key: str) -> None:
        self._request("DELETE", key, "DELETE", recursive="true")

    def plant(self, path: str, tree: Tree) -> None:
        self._request("PUT", path, "MKDIRS")
        for name, leaf in tree.items():
            if not isinstance(leaf, (bytes, File, Link)):
                self._request("PUT", self._key(path, name), "MKDIRS")
        super().plant(path, tree)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Let the caller see the redirect."""


_NO_REDIRECTS = urllib.request.build_opener(_NoRedirects)


def add_site(config: Path, name: str, backend: Backend, more: str = "") -> None:
    """Append the backend to config.toml as the site `name`."""
    text = config.read_text() if config.exists() else "version = 1\n"
    config.write_text(f"{text}[sites.{name}]\n{backend.table().replace('{name}', name)}{more}\n")
    config.chmod(0o600)


def make_backend(word: str, folder: Path, get_fixture: Any) -> Backend:
    """Create an empty backend of that kind; `get_fixture` returns a pytest fixture by name."""
    of_folders = {"local": FolderBackend, "url": WebBackend, "doi": ArchiveBackend, "openneuro": DraftBackend}
    if word in of_folders:
        return of_folders[word](word, folder / f"{word}-root")
    service = word.removesuffix("-uftp")
    if service in _SERVICES:
        more = _SERVICES[service] if service == word else get_fixture("uftp").setting
        return ServiceBackend(service, get_fixture(service), more)
    if word == "ssh":
        return FolderBackend(word, folder / "ssh-root", get_fixture("ssh_server"))
    if word == "sftp":
        return FolderBackend(word, folder / "sftp-root", get_fixture("sftp_server"))
    if word in OBJECT_STORES:
        store = get_fixture(OBJECT_STORES[word])
        return BucketBackend(store, store.bucket())
    if word in DAV_SERVERS:
        return DavBackend(word, get_fixture(DAV_SERVERS[word]))
    if word == "globus":
        return GlobusBackend(word, folder / "globus-root", get_fixture("globus"))
    if word == "cbrain-s3":
        store = get_fixture("object_store")
        return CbrainBulkBackend(store, store.bucket(), get_fixture("cbrain"))
    if word == "cbrain":
        return CbrainBackend(word, get_fixture("cbrain"))
    if word == "ebrains":
        return EbrainsBackend(get_fixture("ebrains"), get_fixture("object_store"))
    if word.startswith("fsspec"):
        return _make_fsspec_backend(word, folder, get_fixture)
    raise LookupError(
        f"there is no test backend for the store {word!r}: add one to tests/support/backends.py"
    )


def _make_fsspec_backend(word: str, folder: Path, get_fixture: Any) -> Backend:
    if word == "fsspec-memory":
        return FsspecMemoryBackend()
    if word == "fsspec-s3":
        store = get_fixture("object_store")
        return FsspecBucketBackend(store, store.bucket())
    if word == "fsspec-gcs":
        return GcsBackend(get_fixture("gcs"))
    if word == "fsspec-webhdfs":
        return HdfsBackend(get_fixture("hdfs"))
    if word == "fsspec-xrootd":
        return XRootDBackend("fsspec", get_fixture("xrootd"))
    if word == "fsspec-azure":
        return AzureBackend(get_fixture("azurite"))
    return FsspecFolderBackend(word, folder / "fsspec-root")
