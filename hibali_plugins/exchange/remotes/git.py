"""Exchange pipelines through a git repository or a RIA store (DataLad handbook, "RIA stores")."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from hibali.subprocesses import run
from hibali.system_errors import reason_of
from hibali.text import printable
from hibali_plugins.exchange.remotes.base import LARGEST_FILE, Offer, Reference, RemoteSpec, Upload, gather
from registry.git import Git, committer_environment, read_blobs

_URL = re.compile(
    r"ria\+(?P<scheme>ssh|file|https)://(?P<host>[^/#]*)(?P<store>/[^#]*)#(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)
_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.-]*)@)?(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")  # characters that every login shell keeps (S7)
_STORE_VERSION, _DATASET_VERSION = "1", "2"
_SECONDS = 120.0
_OTHER_VERSION = 64
_NO_GIT = 65
# ssh(1): no forwarding to the host, and no other programs from the settings of this account
_SSH_OPTIONS = (
    ("RequestTTY", "no"),
    ("RemoteCommand", "none"),
    ("ForwardAgent", "no"),
    ("PermitLocalCommand", "no"),
)
_SCRIPT = f"""set -eu
store=$1 folder=$2 name=$3
command -v git >/dev/null || exit {_NO_GIT}
mkdir -p "$store/error_logs" "$store/$folder"
version=$store/ria-layout-version
if test -e "$version"; then
    read -r found < "$version" || test -n "$found"
    test "${{found%%|*}}" = {_STORE_VERSION} || exit {_OTHER_VERSION}
else
    echo {_STORE_VERSION} > "$version.$$"
    mv "$version.$$" "$version"
fi
dataset=$store/$folder/$name
test -e "$dataset" && exit 0
partial=$store/$folder/.hibali-$$
git init -q --bare --template= "$partial"
git --git-dir "$partial" symbolic-ref HEAD refs/heads/main
mkdir -p "$partial/annex/objects" "$partial/archives"
echo {_DATASET_VERSION} > "$partial/ria-layout-version"
test -e "$dataset" || mv "$partial" "$dataset"
rm -rf "$partial" "$dataset/.hibali-$$"
"""


@dataclass(frozen=True, slots=True)
class RiaPlace:
    """A dataset in a RIA store; `host` is "" where the store is a folder of this machine."""

    scheme: str
    host: str
    store: str
    identifier: str

    @property
    def folder(self) -> str:
        """The dataset's own folder, which is a bare git repository."""
        return f"{self.store}/{self.identifier[:3]}/{self.identifier[3:]}"

    @property
    def git_url(self) -> str:
        """The URL for git."""
        return self.folder if self.scheme == "file" else f"{self.scheme}://{self.host}{self.folder}"


def read_ria_url(url: str) -> RiaPlace | None:
    """Parse `ria+ssh://HOST/STORE#ID`; None for other URLs. Raises `UsageError` where the id is missing."""
    if not url.startswith("ria+"):
        return None
    found = _URL.fullmatch(url)
    if found is None or (found["host"] != "") != (found["scheme"] != "file"):
        fresh = f"{url.partition('#')[0]}#{uuid.uuid4()}"
        raise UsageError(
            "bad-ria-url",
            "the URL of a dataset in a RIA store is ria+ssh://HOST/STORE#ID, ria+https://HOST/STORE#ID or ria+file:///STORE#ID",
            subject=printable(url),
            hint=f"ID is the id of the dataset. For a new dataset, use a new one: {printable(fresh)}",
        )
    return RiaPlace(found["scheme"], found["host"], found["store"].rstrip("/"), found["id"])


def make_dataset(place: RiaPlace) -> None:
    """Create the dataset by one rename, and its store where needed; an existing one is not changed.

    Raises `AccessError`, `IncompleteError`, `RefusedError` for a store of another layout, `TryLaterError`, and `UsageError` with the
    command to run where it cannot be done from here.
    """
    if place.scheme == "file":
        _make_here(place)
    elif place.scheme == "ssh":
        _make_there(place)
    else:
        raise UsageError(
            "cannot-make-dataset",
            "this dataset does not exist, and cannot be created over https",
            subject=place.git_url,
            hint=f"Run this on the store's host: {_line_to_type(place)}",
        )


def _make_here(place: RiaPlace) -> None:
    store, dataset = Path(place.store), Path(place.folder)
    partial = dataset.parent / f".hibali-{secrets.token_hex(16)}"
    try:
        (store / "error_logs").mkdir(parents=True, exist_ok=True)
        _check_version(store / "ria-layout-version")
        dataset.parent.mkdir(exist_ok=True)
        try:
            Git(partial).check_output("init", "-q", "--bare", "--template=", "-b", "main", str(partial))
            (partial / "annex/objects").mkdir(parents=True)
            (partial / "archives").mkdir()
            (partial / "ria-layout-version").write_text(f"{_DATASET_VERSION}\n")
            if not dataset.exists():
                partial.rename(dataset)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except PermissionError:
        raise AccessError(
            "denied", "no permission to write to the store", subject=printable(place.store)
        ) from None
    except OSError as problem:
        if (dataset / "HEAD").exists():  # another process created it first
            return
        raise IncompleteError(
            "cannot-make-dataset",
            f"the dataset cannot be created: {reason_of(problem)}",
            subject=printable(place.folder),
        ) from None


def _check_version(file: Path) -> None:
    if not file.exists():
        partial = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        partial.write_text(f"{_STORE_VERSION}\n")
        partial.replace(file)
    elif file.read_bytes()[:64].partition(b"|")[0].strip() != _STORE_VERSION.encode():
        raise _other_version(str(file.parent))


def _make_there(place: RiaPlace) -> None:
    host = _HOST.fullmatch(place.host)
    login = _ssh_argv()
    if host is None or login is None or not _PLAIN.fullmatch(place.store):
        raise UsageError(
            "cannot-make-dataset",
            "this dataset does not exist, and cannot be created from here: its path or your ssh settings need a shell",
            subject=printable(place.git_url),
            hint=f"Run this on the store's host: {_line_to_type(place)}",
        )
    arguments = [*login, *(("-p", host["port"]) if host["port"] else ())]
    name = host["name"].strip("[]")
    location = f"{host['user']}@{name}" if host["user"] else name
    script = ("sh", "-s", "--", place.store, place.identifier[:3], place.identifier[3:])
    done = run([*arguments, location, *script], stdin=_SCRIPT.encode("ascii"), timeout=_SECONDS)
    if done.exit_code != 0:
        raise _error_of(done.exit_code, done.stderr, place)


def _ssh_argv() -> list[str] | None:
    """Return the ssh command of this account's git (git-config(1), core.sshCommand); None where only a shell could parse it."""
    command = os.environ.get("GIT_SSH_COMMAND")
    if not command:
        known = Git(Path(os.devnull)).run("config", "--get", "core.sshCommand", own_settings=True)
        command = known.stdout.decode("utf-8", "surrogateescape").strip()
    try:
        arguments = shlex.split(command) if command else [os.environ.get("GIT_SSH") or "ssh"]
    except ValueError:
        return None
    if not arguments or any(letter in argument for argument in arguments for letter in "$`;&|<>()*?~\n"):
        return None
    if Path(arguments[0]).name == "ssh":
        arguments[1:1] = [part for name, value in _SSH_OPTIONS for part in ("-o", f"{name}={value}")]
    return arguments


def _error_of(code: int, stderr: bytes, place: RiaPlace) -> HibaliError:
    text, subject = printable(stderr.strip()[-400:]), printable(place.git_url)
    if code == _OTHER_VERSION:
        return _other_version(f"{place.host}:{place.store}")
    if code == _NO_GIT:
        return IncompleteError("no-git", "git is not installed on the store's host", subject=subject)
    if b"Permission denied" in stderr:
        return AccessError("denied", f"no permission to write to the store: {text}", subject=subject)
    if code == 255:
        return TryLaterError("remote-unreachable", f"the store cannot be reached: {text}", subject=subject)
    return IncompleteError(
        "cannot-make-dataset",
        f"the dataset cannot be created: {text or f'sh ended with {code}'}",
        subject=subject,
        hint=f"Run this on the store's host: {_line_to_type(place)}",
    )


def _other_version(store: str) -> RefusedError:
    return RefusedError(
        "unknown-layout", f"the layout of the store is not version {_STORE_VERSION}", subject=printable(store)
    )


def _line_to_type(place: RiaPlace) -> str:
    """Return the command that creates the repository; other parts exist or are created with the next dataset."""
    return f"git init --bare -b main {shlex.quote(place.folder)}"


_BRANCH = "refs/heads/main"


class GitRemote:
    """The Remote protocol (hibali_plugins.exchange.remotes.base.Remote)."""

    def __init__(self, spec: RemoteSpec) -> None:
        self._spec = spec
        self._url = repository_url(spec.url)
        self._git = Git(spec.folder / "exchange.git")
        self._known_ref = f"refs/remotes/{spec.name}/main"

    def take_snapshot(self, *, accept_rewritten: bool = False, make: bool = False) -> GitSnapshot:
        """See Remote. Only datasets of a RIA store are created: their URL has all that is needed."""
        self._prepare()
        arrived = f"refs/hibali/arrived-{secrets.token_hex(8)}"
        try:
            tip = self._fetch_or_make(arrived) if make else self._fetch(arrived)
            known = self._resolve(self._known_ref)
            if known and tip != known and not accept_rewritten:
                self._check_grown(known, tip)
            if tip:
                self._git.check_output("update-ref", self._known_ref, tip)
        finally:
            self._git.run("update-ref", "-d", arrived)
        return GitSnapshot(self._git, self._url, tip, self._known_ref)

    def _prepare(self) -> None:
        folder = self._git.folder
        if not (folder / "HEAD").exists():
            self._git.check_output("init", "-q", "--bare", "--template=", str(folder))

    def _fetch_or_make(self, arrived: str) -> str:
        try:
            return self._fetch(arrived)
        except NotFoundError:
            place = read_ria_url(self._spec.url)
            if place is None:
                raise
        if self._resolve(self._known_ref):
            raise NotFoundError(
                "no-repository",
                "the dataset existed before, but does not exist any more",
                subject=printable(self._spec.url),
                hint="Check that the store is mounted, and that the URL names the right host.",
            )
        make_dataset(place)
        return self._fetch(arrived)

    def _fetch(self, arrived: str) -> str:
        """Fetch the tip of its branch; "" where it has none yet."""
        server = self._git.server_options(self._url, "upload-pack")
        arguments = ["fetch", "-q", "--no-tags", "--no-write-fetch-head", *server, "--end-of-options"]
        fetched = self._git.run(*arguments, self._url, f"+{_BRANCH}:{arrived}", own_settings=True)
        if fetched.exit_code == 0:
            return self._resolve(arrived)
        if b"couldn't find remote ref" in fetched.stderr:
            return ""
        raise error_of(fetched.stderr, self._spec.url)

    def _resolve(self, ref: str) -> str:
        return self._git.run("rev-parse", "-q", "--verify", f"{ref}^{{commit}}").stdout.decode().strip()

    def _check_grown(self, known: str, tip: str) -> None:
        """Raise where the last known commit is not an ancestor of the present branch."""
        if tip and self._git.run("merge-base", "--is-ancestor", known, tip).exit_code == 0:
            return
        raise RefusedError(
            "history-rewritten",
            f"the history of the remote was rewritten: commit {known[:12]}, seen before, is not an ancestor of {tip[:12] or 'the empty branch'}",
            subject=self._spec.name,
            hint="Ask its maintainer. If the change is intended, add --accept-rewritten.",
        )


class GitSnapshot:
    """The Snapshot protocol: one commit."""

    def __init__(self, git: Git, url: str, tip: str, known_ref: str) -> None:
        self._git = git
        self._url = url
        self._tip = tip
        self._known_ref = known_ref

    def offers(self) -> Mapping[Reference, Offer]:
        """See Snapshot. Symlinks, submodules and large files are ignored."""
        if not self._tip:
            return {}
        listed = self._git.check_output("ls-tree", "-r", "-z", "-l", self._tip)
        return gather(_files(listed), self._url)

    def read(self, wanted: Sequence[str]) -> Iterable[bytes]:
        """See Snapshot."""
        return [raw for _, raw in read_blobs(self._git, [(each.encode(), each) for each in wanted])]

    def publish(self, uploads: Sequence[Upload], message: str) -> bool:
        """See Snapshot: one commit on top of the snapshot, pushed without force."""
        branch = f"refs/hibali/publish-{secrets.token_hex(8)}"
        try:
            stream = _commit(branch, self._tip, uploads, message)
            self._git.check_output("fast-import", "--quiet", "--done", "--date-format=now", stdin=stream)
            server = self._git.server_options(self._url, "receive-pack")
            arguments = ["push", "--porcelain", "--no-verify", *server, "--end-of-options"]
            pushed = self._git.run(*arguments, self._url, f"{branch}:{_BRANCH}", own_settings=True)
            if pushed.exit_code == 0:
                self._git.check_output("update-ref", self._known_ref, branch)
                return True
            if b"\t[rejected]" in pushed.stdout or b"[remote rejected] (fetch first)" in pushed.stdout:
                return False
            if (
                b"cannot lock ref" in pushed.stdout + pushed.stderr
                or b"failed to update ref" in pushed.stdout
            ):
                return False
            raise error_of(pushed.stderr + pushed.stdout, self._url)
        finally:
            self._git.run("update-ref", "-d", branch)


def repository_url(url: str) -> str:
    """Return the URL for git: without `git+`, and for a dataset in a RIA store its folder."""
    place = read_ria_url(url)
    return url.removeprefix("git+") if place is None else place.git_url


def is_repository(folder: Path) -> bool:
    """Return whether a folder is a git repository, bare or not."""
    return ((folder / "HEAD").exists() and (folder / "objects").is_dir()) or (folder / ".git").exists()


def error_of(stderr: bytes, subject: str) -> HibaliError:
    """Translate the error messages of git (2.39 under LC_ALL=C)."""
    text = printable(stderr.strip()[-400:])
    subject = printable(subject)
    if b"does not appear to be a git repository" in stderr or b"not found" in stderr:
        return NotFoundError(
            "no-repository",
            "this is not a git repository",
            subject=subject,
            hint="Create one: git init --bare PATH",
        )
    if b"branch is currently checked out" in stderr:
        return RefusedError(
            "branch-checked-out",
            "the branch main of the remote is checked out in a work tree",
            subject=subject,
            hint="Publish to a bare repository: git init --bare PATH",
        )
    if (
        b"Permission denied" in stderr
        or b"Authentication failed" in stderr
        or b"could not read Username" in stderr
    ):
        return AccessError("denied", f"the remote rejected the login: {text}", subject=subject)
    if b"not allowed" in stderr and b"transport" in stderr:
        return RefusedError("unsafe-url", f"git refused this kind of URL: {text}", subject=subject)
    if b"fsck" in stderr or b"unpack-objects abnormal exit" in stderr or b"index-pack failed" in stderr:
        return RefusedError("bad-objects", f"the remote sent invalid objects: {text}", subject=subject)
    return TryLaterError("remote-unreachable", f"the remote cannot be reached: {text}", subject=subject)


def _files(listed: bytes) -> Iterable[tuple[str, str]]:
    for line in filter(None, listed.split(b"\0")):
        command, _, name = line.partition(b"\t")
        mode, kind, digest, size = command.split()
        if mode.startswith(b"100") and kind == b"blob" and int(size) <= LARGEST_FILE and name.isascii():
            yield name.decode("ascii"), digest.decode("ascii")


def _commit(ref: str, parent: str, uploads: Sequence[Upload], message: str) -> bytes:
    """Return the stream for git-fast-import(1). Names and versions have no characters that need quoting there."""
    committer = committer_environment()
    person = f"{committer['GIT_COMMITTER_NAME']} <{committer['GIT_COMMITTER_EMAIL']}> now"
    text = message.encode()
    lines = [f"commit {ref}\ncommitter {person}\ndata {len(text)}\n".encode(), text, b"\n"]
    if parent:
        lines.append(f"from {parent}\n".encode())
    for upload in uploads:
        for name, content in sorted(upload.files.items()):
            path = f"{upload.name}/{upload.version}/{name}"
            lines += [f"M 100644 inline {path}\ndata {len(content)}\n".encode(), content, b"\n"]
    return b"".join([*lines, b"\ndone\n"])
