"""A git repository as a remote: objects are fetched, blobs read, commits of ours pushed; nothing of theirs is checked out or run."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hibali.errors import AccessError, HibaliError, NotFoundError, RefusedError, TryLaterError
from hibali.text import printable
from registry.git import Git, read_blobs, who_commits
from registry.remote import LARGEST_FILE, Meeting, Offer, Parcel, Reference, gather
from registry.ria import make_dataset, read_ria_url

_BRANCH = "refs/heads/main"


class GitRemote:
    """The Remote protocol (registry.remote.Remote)."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._url = repository_url(meeting.url)
        self._git = Git(meeting.folder / "exchange.git")
        self._seen = f"refs/remotes/{meeting.name}/main"

    def look(self, *, accept_rewritten: bool = False, make: bool = False) -> GitLook:
        """See Remote. Only a dataset of a RIA store is made: whoever names one has said what it is to be."""
        self._prepare()
        arrived = f"refs/hibali/arrived-{secrets.token_hex(8)}"
        try:
            tip = self._fetch_or_make(arrived) if make else self._fetch(arrived)
            known = self._resolve(self._seen)
            if known and tip != known and not accept_rewritten:
                self._check_grown(known, tip)
            if tip:
                self._git.ask("update-ref", self._seen, tip)
        finally:
            self._git.run("update-ref", "-d", arrived)
        return GitLook(self._git, self._url, tip, self._seen)

    def _prepare(self) -> None:
        folder = self._git.folder
        if not (folder / "HEAD").exists():
            self._git.ask("init", "-q", "--bare", "--template=", str(folder))

    def _fetch_or_make(self, arrived: str) -> str:
        try:
            return self._fetch(arrived)
        except NotFoundError:
            place = read_ria_url(self._meeting.url)
            if place is None:
                raise
        if self._resolve(self._seen):
            raise NotFoundError(
                "no-repository",
                "the dataset that was there before is gone",
                about=printable(self._meeting.url),
                hint="Is the store mounted, and is this the host that you mean?",
            )
        make_dataset(place)
        return self._fetch(arrived)

    def _fetch(self, arrived: str) -> str:
        """The tip of its branch; "" where it has none yet."""
        server = self._git.server_words(self._url, "upload-pack")
        words = ["fetch", "-q", "--no-tags", "--no-write-fetch-head", *server, "--end-of-options"]
        fetched = self._git.run(*words, self._url, f"+{_BRANCH}:{arrived}", own_settings=True)
        if fetched.exit_code == 0:
            return self._resolve(arrived)
        if b"couldn't find remote ref" in fetched.stderr:
            return ""
        raise error_of(fetched.stderr, self._meeting.url)

    def _resolve(self, ref: str) -> str:
        return self._git.run("rev-parse", "-q", "--verify", f"{ref}^{{commit}}").stdout.decode().strip()

    def _check_grown(self, known: str, tip: str) -> None:
        """Raise where what was there before is not among what is there now."""
        if tip and self._git.run("merge-base", "--is-ancestor", known, tip).exit_code == 0:
            return
        raise RefusedError(
            "history-rewritten",
            f"the remote's history was rewritten: {known[:12]} was there, and is not before {tip[:12] or 'nothing'}",
            about=self._meeting.name,
            hint="Ask who did it. If that was meant: --accept-rewritten",
        )


class GitLook:
    """The Look protocol: one commit."""

    def __init__(self, git: Git, url: str, tip: str, seen: str) -> None:
        self._git = git
        self._url = url
        self._tip = tip
        self._seen = seen

    def offers(self) -> Mapping[Reference, Offer]:
        """See Look. Symlinks, submodules and large files are passed over."""
        if not self._tip:
            return {}
        listed = self._git.ask("ls-tree", "-r", "-z", "-l", self._tip)
        return gather(_files(listed), self._url)

    def read(self, wanted: Sequence[str]) -> Iterable[bytes]:
        """See Look."""
        return [raw for _, raw in read_blobs(self._git, [(each.encode(), each) for each in wanted])]

    def publish(self, parcels: Sequence[Parcel], message: str) -> bool:
        """See Look: one commit on top of what was looked at, pushed without force."""
        ours = f"refs/hibali/publish-{secrets.token_hex(8)}"
        try:
            stream = _commit(ours, self._tip, parcels, message)
            self._git.ask("fast-import", "--quiet", "--done", "--date-format=now", stdin=stream)
            server = self._git.server_words(self._url, "receive-pack")
            words = ["push", "--porcelain", "--no-verify", *server, "--end-of-options"]
            pushed = self._git.run(*words, self._url, f"{ours}:{_BRANCH}", own_settings=True)
            if pushed.exit_code == 0:
                self._git.ask("update-ref", self._seen, ours)
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
            self._git.run("update-ref", "-d", ours)


def repository_url(url: str) -> str:
    """What git is told: `git+` is taken off, and a dataset in a RIA store is found by its id."""
    place = read_ria_url(url)
    return url.removeprefix("git+") if place is None else place.git_url


def is_repository(folder: Path) -> bool:
    """Whether a folder is a git repository, bare or not."""
    return ((folder / "HEAD").exists() and (folder / "objects").is_dir()) or (folder / ".git").exists()


def error_of(said: bytes, about: str) -> HibaliError:
    """What git says it failed with, as one of our errors (text of git 2.39 under LC_ALL=C)."""
    text = printable(said.strip()[-400:])
    about = printable(about)
    if b"does not appear to be a git repository" in said or b"not found" in said:
        return NotFoundError(
            "no-repository",
            "there is no git repository",
            about=about,
            hint="Make one there: git init --bare PATH",
        )
    if b"branch is currently checked out" in said:
        return RefusedError(
            "branch-checked-out",
            "the remote has its branch main checked out in a work tree",
            about=about,
            hint="Publish to a bare repository: git init --bare PATH",
        )
    if b"Permission denied" in said or b"Authentication failed" in said or b"could not read Username" in said:
        return AccessError("denied", f"the remote does not let you in: {text}", about=about)
    if b"not allowed" in said and b"transport" in said:
        return RefusedError("unsafe-url", f"this kind of URL is not used: {text}", about=about)
    if b"fsck" in said or b"unpack-objects abnormal exit" in said or b"index-pack failed" in said:
        return RefusedError("bad-objects", f"what the remote sends is not sound: {text}", about=about)
    return TryLaterError("remote-unreachable", f"the remote cannot be reached: {text}", about=about)


def _files(listed: bytes) -> Iterable[tuple[str, str]]:
    for line in filter(None, listed.split(b"\0")):
        told, _, name = line.partition(b"\t")
        mode, kind, digest, size = told.split()
        if mode.startswith(b"100") and kind == b"blob" and int(size) <= LARGEST_FILE and name.isascii():
            yield name.decode("ascii"), digest.decode("ascii")


def _commit(ref: str, parent: str, parcels: Sequence[Parcel], message: str) -> bytes:
    """The stream of git-fast-import(1). Names and versions have no character that it would want quoted."""
    who = who_commits()
    person = f"{who['GIT_COMMITTER_NAME']} <{who['GIT_COMMITTER_EMAIL']}> now"
    text = message.encode()
    lines = [f"commit {ref}\ncommitter {person}\ndata {len(text)}\n".encode(), text, b"\n"]
    if parent:
        lines.append(f"from {parent}\n".encode())
    for parcel in parcels:
        for name, content in sorted(parcel.files.items()):
            path = f"{parcel.name}/{parcel.version}/{name}"
            lines += [f"M 100644 inline {path}\ndata {len(content)}\n".encode(), content, b"\n"]
    return b"".join([*lines, b"\ndone\n"])
