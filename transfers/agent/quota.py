"""What quotas leave of a filesystem: `quota` and `lfs quota` asked there, their answers read."""

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

_SECONDS = 5
_BLOCK = 1024  # both programs count space in KiB
_HEADER = re.compile(r"Disk quotas for (\w+) .*\([ugp]id (\d+)\)")
_PROJECT = re.compile(r"\s*(\d+) ")
_AMOUNT = re.compile(r"(\d+)\*?\Z")
_KINDS = {
    "usr": "user",
    "user": "user",
    "grp": "group",
    "group": "group",
    "prj": "project",
    "project": "project",
}
_LOCAL = ("usrquota", "grpquota", "usrjquota", "grpjquota", "uquota", "gquota", "quota")

Room = NamedTuple("Room", [("who", str), ("bytes", Optional[int]), ("inodes", Optional[int])])
Mount = NamedTuple("Mount", [("folder", bytes), ("kind", str), ("options", str)])


def read_rooms(text: str) -> Iterator[Room]:
    """What each quota in an answer leaves, of those that have a hard limit.

    A soft limit can be passed for days. A row whose grace column is empty (`quota` without -p), or with amounts
    in brackets (Lustre, when a server did not answer), says nothing that can be relied on.
    """
    who = ""
    before: List[str] = []
    for line in text.splitlines():
        found = _HEADER.match(line.strip())
        words = line.split()
        if found:
            kind = _KINDS.get(found.group(1))
            who = "{} {}".format(kind, found.group(2)) if kind else ""
            before = []
        elif not words or words[0] == "Filesystem" or not who:
            before = []
        elif len(words) == 1:
            before = words  # a long name has its amounts on the next line
        else:
            room = _read_row(who, before + words)
            before = []
            if room is not None:
                yield room


def _read_row(who: str, words: List[str]) -> Optional[Room]:
    """Filesystem, then used, soft, hard and grace of space, then the same of inodes."""
    if len(words) != 9:
        return None
    amounts = [_AMOUNT.match(words[column]) for column in (1, 3, 5, 7)]
    if None in amounts:
        return None
    space, limit, files, file_limit = [int(found.group(1)) for found in amounts if found]
    if not limit and not file_limit:
        return None
    return Room(
        who,
        max(0, limit - space) * _BLOCK if limit else None,
        max(0, file_limit - files) if file_limit else None,
    )


def read_project(text: str) -> Optional[int]:
    """The project of a folder in the answer of `lfs project -d`; None where it has none."""
    found = _PROJECT.match(text)
    number = int(found.group(1)) if found else 0
    return number or None


def find_mount(table: bytes, path: bytes) -> Optional[Mount]:
    """The mount of /proc/self/mountinfo that holds an absolute, real path."""
    best = None
    for line in table.splitlines():
        fields, separator, rest = line.partition(b" - ")
        own, other = fields.split(b" "), rest.split(b" ")
        if not separator or len(own) < 6 or len(other) < 3:
            continue
        folder = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal.group(1), 8)]), own[4])
        inside = path == folder or path.startswith(folder.rstrip(b"/") + b"/")
        if inside and (best is None or len(folder) >= len(best.folder)):
            options = b",".join((own[5], other[2])).decode("ascii", "replace")
            best = Mount(folder, other[0].decode("ascii", "replace"), options)
    return best


def questions(mount: Mount, path: bytes, ids: Tuple[int, int], project: Optional[int]) -> List[List[bytes]]:
    """The commands that tell what a user and a group may use there; none where no quota can be."""
    if mount.kind == "lustre":
        asked = [(b"-u", ids[0]), (b"-g", ids[1])] + ([(b"-p", project)] if project else [])
        return [[b"lfs", b"quota", flag, str(number).encode("ascii"), path] for flag, number in asked]
    words = {option.partition("=")[0] for option in mount.options.split(",")}
    if mount.kind in ("nfs", "nfs4") or words.intersection(_LOCAL):
        return [[b"quota", b"-u", b"-g", b"-w", b"-p", b"-v", b"-f", mount.folder]]
    return []


def can_be_at(path: bytes) -> bool:
    """Whether a quota may limit this account at a folder; looks at no more than the table of mounts."""
    mount = _mount_at(os.path.realpath(path))
    return mount is not None and bool(questions(mount, path, (0, 0), None))


def _mount_at(real: bytes) -> Optional[Mount]:
    """None also for root, whom nobody's quota stops."""
    if os.geteuid() == 0:
        return None
    try:
        with open("/proc/self/mountinfo", "rb") as stream:
            return find_mount(stream.read(), real)
    except OSError:
        return None


def rooms_at(path: bytes) -> List[Room]:
    """What the quotas of this account leave at a folder; nothing where nobody tells within some seconds.

    A project's quota on XFS and ext4 is in what statvfs says already.
    """
    real = os.path.realpath(path)
    mount = _mount_at(real)
    if mount is None:
        return []
    status = os.stat(real)
    gid = status.st_gid if status.st_mode & 0o2000 else os.getegid()
    project = None
    if mount.kind == "lustre":
        project = read_project(_answer([b"lfs", b"project", b"-d", real]))
    ours = {"user {}".format(os.geteuid()), "group {}".format(gid), "project {}".format(project)}
    asked = questions(mount, real, (os.geteuid(), gid), project)
    return [room for text in map(_answer, asked) for room in read_rooms(text) if room.who in ours]


def _answer(words: List[bytes]) -> str:
    """What a program prints; its exit status says whether somebody is over quota, too."""
    import subprocess

    environment: Dict[str, str] = dict(os.environ, LC_ALL="C")
    try:
        ended = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.decode("utf-8", "replace")
