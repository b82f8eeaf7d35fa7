"""Handle small files, folders, quotas and programs at a site; no shell interprets arguments."""

import contextlib
import errno
import hashlib
import json
import os
import re
import signal
import stat
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.identity import LONGEST, MOUNTS, identify, this_machine
from transfers.agent.progress import step
from transfers.agent.protocol import Reply, is_in, pack_record
from transfers.agent.receiving import absolute_path, get_all, put_all, read_up_to, sync_folder
from transfers.agent.safe_path import record_of
from transfers.agent.writing import supports_attributes

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

Quota = NamedTuple("Quota", [("owner", str), ("bytes", Optional[int]), ("inodes", Optional[int])])
Mount = NamedTuple("Mount", [("folder", bytes), ("kind", str), ("options", str)])


def read_quotas(text: str) -> Iterator[Quota]:
    """Yield the remaining space of each quota with a hard limit in a program's output.

    Soft limits are ignored, because they may be exceeded for days. A row is skipped if its grace column is empty
    (`quota` without -p) or its amounts are in brackets (Lustre, when a server did not respond).
    """
    owner = ""
    before: List[str] = []
    for line in text.splitlines():
        found = _HEADER.match(line.strip())
        columns = line.split()
        if found:
            kind = _KINDS.get(found.group(1))
            owner = "{} {}".format(kind, found.group(2)) if kind else ""
            before = []
        elif not columns or columns[0] == "Filesystem" or not owner:
            before = []
        elif len(columns) == 1:
            before = columns  # a long name has its amounts on the next line
        else:
            quota = _read_row(owner, before + columns)
            before = []
            if quota is not None:
                yield quota


def _read_row(owner: str, columns: List[str]) -> Optional[Quota]:
    """Read filesystem, then used, soft, hard and grace of space, then the same of inodes."""
    if len(columns) != 9:
        return None
    amounts = [_AMOUNT.match(columns[column]) for column in (1, 3, 5, 7)]
    if None in amounts:
        return None
    space, limit, files, file_limit = [int(found.group(1)) for found in amounts if found]
    if not limit and not file_limit:
        return None
    return Quota(
        owner,
        max(0, limit - space) * _BLOCK if limit else None,
        max(0, file_limit - files) if file_limit else None,
    )


def read_project(text: str) -> Optional[int]:
    """Return a folder's project from the output of `lfs project -d`; None if it has none."""
    found = _PROJECT.match(text)
    number = int(found.group(1)) if found else 0
    return number or None


def find_mount(table: bytes, path: bytes) -> Optional[Mount]:
    """Return the mount in /proc/self/mountinfo that contains an absolute, real path."""
    best = None
    for line in table.splitlines():
        fields, separator, sources = line.partition(b" - ")
        own, other = fields.split(b" "), sources.split(b" ")
        if not separator or len(own) < 6 or len(other) < 3:
            continue
        folder = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal.group(1), 8)]), own[4])
        if is_in(path, folder) and (best is None or len(folder) >= len(best.folder)):
            options = b",".join((own[5], other[2])).decode("ascii", "replace")
            best = Mount(folder, other[0].decode("ascii", "replace"), options)
    return best


def quota_commands(
    mount: Mount, path: bytes, ids: Tuple[int, int], project: Optional[int]
) -> List[List[bytes]]:
    """Return the quota commands for a user and a group at a path; none if no quota is possible."""
    if mount.kind == "lustre":
        flags = [(b"-u", ids[0]), (b"-g", ids[1])] + ([(b"-p", project)] if project else [])
        return [[b"lfs", b"quota", flag, str(number).encode("ascii"), path] for flag, number in flags]
    options = {option.partition("=")[0] for option in mount.options.split(",")}
    if mount.kind in ("nfs", "nfs4") or options.intersection(_LOCAL):
        return [[b"quota", b"-u", b"-g", b"-w", b"-p", b"-v", b"-f", mount.folder]]
    return []


def can_be_at(path: bytes) -> bool:
    """Return whether a quota may limit this account at a folder; reads only the table of mounts."""
    mount = _mount_at(os.path.realpath(path))
    return mount is not None and bool(quota_commands(mount, path, (0, 0), None))


def _mount_at(real: bytes) -> Optional[Mount]:
    """Return the mount of a path; None also for root, whom no quota limits."""
    if os.geteuid() == 0:
        return None
    try:
        with open("/proc/self/mountinfo", "rb") as stream:
            return find_mount(stream.read(), real)
    except OSError:
        return None


def quotas_at(path: bytes) -> List[Quota]:
    """Return this account's remaining quotas at a folder; none if no program replies within seconds.

    A project's quota on XFS and ext4 is already part of the statvfs result.
    """
    real = os.path.realpath(path)
    mount = _mount_at(real)
    if mount is None:
        return []
    status = os.stat(real)
    gid = status.st_gid if status.st_mode & 0o2000 else os.getegid()
    project = None
    if mount.kind == "lustre":
        project = read_project(_output_of([b"lfs", b"project", b"-d", real]))
    owners = {"user {}".format(os.geteuid()), "group {}".format(gid), "project {}".format(project)}
    outputs = map(_output_of, quota_commands(mount, real, (os.geteuid(), gid), project))
    return [quota for output in outputs for quota in read_quotas(output) if quota.owner in owners]


def _output_of(argv: List[bytes]) -> str:
    """Return a program's output; a nonzero exit status may only mean that a quota is exceeded."""
    import subprocess  # start-up: only for this request

    environment: Dict[str, str] = dict(os.environ, LC_ALL="C")
    try:
        ended = subprocess.run(
            argv,
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


def folds_case(folder: bytes) -> bool:
    """Return whether the filesystem ignores case, tested by a name in an existing folder, else by the folder's own name."""
    folder = os.path.realpath(folder)
    with os.scandir(folder) as names:
        for name in names:
            result = _is_found_otherwise(folder, name.name)
            if result is not None:
                return result
    above, own = os.path.split(folder)
    if not own or os.lstat(above).st_dev != os.lstat(folder).st_dev:
        return False
    return bool(_is_found_otherwise(above, own))


def _is_found_otherwise(folder: bytes, name: bytes) -> Optional[bool]:
    """Return whether the name is also found with its case swapped; None if that cannot be decided."""
    other = name.swapcase()  # bytes.swapcase changes ASCII letters only
    if other == name:
        return None
    try:
        found = os.lstat(os.path.join(folder, name))
        again = os.lstat(os.path.join(folder, other))
    except FileNotFoundError:
        return False
    if not os.path.samestat(found, again):
        return False
    # two hard links of one file may differ only in case
    return True if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode) else None


_OUTPUT = 8 * 1024 * 1024
_CHUNK = 1024 * 1024
_POLL_SECONDS = 0.5
_VARIABLE = re.compile(r"\A\$([A-Za-z_][A-Za-z0-9_]*)(/.*)?\Z", re.DOTALL)


def _path(header: Dict[str, Any], key: str = "path") -> bytes:
    return absolute_path(header[key])


def _expand(header: Dict[str, Any]) -> Reply:
    """Expand `~`, `~/x`, `$NAME` and `$NAME/x` at the start; an unset variable is reported as not found."""
    text = protocol.bytes_of(header["path"]).decode("utf-8", "surrogateescape")
    found = _VARIABLE.match(text)
    if text == "~" or text.startswith("~/"):
        text = os.path.expanduser("~") + text[1:]
    elif found:
        value = os.environ.get(found.group(1), "")
        if not value.startswith("/"):
            raise OSError(errno.ENOENT, "no such variable", found.group(1))
        text = value + (found.group(2) or "")
    elif not text.startswith("/"):
        text = os.path.join(os.path.expanduser("~"), text)
    path = os.fsencode(os.path.normpath(text))
    return {"path": protocol.text_of(path)}, b""


def expanded(paths: Iterable[str]) -> List[bytes]:
    """Return the absolute paths, expanded as by `expand`; paths with an unset variable are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found.append(protocol.bytes_of(_expand({"path": path})[0]["path"]))
    return found


def _resolve(header: Dict[str, Any]) -> Reply:
    """Resolve the symlinks of paths, expanded as by `expand`; "" for one with an unset variable."""
    found = []
    for path in header["paths"]:
        try:
            place = protocol.bytes_of(_expand({"path": path})[0]["path"])
        except FileNotFoundError:
            found.append("")
        else:
            found.append(protocol.text_of(os.path.realpath(place)))
    return {"paths": found}, b""


def _stat(header: Dict[str, Any]) -> Reply:
    try:
        found = os.stat(_path(header))
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR):
            return {"found": False}, b""
        raise
    return {"found": True}, pack_record(record_of(b"", found))


def _is_private(header: Dict[str, Any]) -> Reply:
    """Return whether a folder belongs to this account or root, and others may not write to it."""
    try:
        found = os.stat(_path(header))
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ENOTDIR):
            return {"private": False}, b""
        raise
    trusted = stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid())
    return {"private": trusted and not found.st_mode & 0o022}, b""


def _inspect(header: Dict[str, Any]) -> Reply:
    """Return where a path leads, what exists there, and the space: each round trip is expensive."""
    place, _ = _expand(header)
    found, record = _stat(place)
    space, _ = _space(place)
    path = _path(place)
    result = {"room": space, "packed": _packed_at(path), "file_above": _is_below_a_file(path)}
    return {**place, **found, **result, "identity": identify(path, this_machine())}, record


def _identify(header: Dict[str, Any]) -> Reply:
    """Return the identities of paths, expanded as by `expand`; None for one with an unset variable."""
    found = []  # type: List[Optional[Dict[str, Any]]]
    for path in header["paths"]:
        try:
            place, _ = _expand({"path": path})
        except FileNotFoundError:
            found.append(None)
        else:
            found.append(identify(_path(place), this_machine()))
    return {"identities": found}, b""


def _filesystem(header: Dict[str, Any]) -> Reply:
    """Return the kind of filesystem at a path, as in /proc/self/mountinfo; "" if unknown."""
    with open(MOUNTS, "rb") as stream:
        mount = find_mount(stream.read(LONGEST), os.path.realpath(_path(header)))
    return {"kind": mount.kind if mount else ""}, b""


def _is_below_a_file(path: bytes) -> bool:
    """Return whether a component before the last is not a folder."""
    try:
        os.stat(path)
    except OSError as problem:
        return problem.errno == errno.ENOTDIR
    return False


def _packed_at(path: bytes) -> Optional[str]:
    """Return the path or the nearest existing folder above it, if small files are packed there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    found = os.path.isdir(os.path.join(path, protocol.OWN_FOLDER, protocol.PACKS))
    return protocol.text_of(path) if found else None


def _make_folder(header: Dict[str, Any]) -> Reply:
    """Create a folder with mode 0700; `exclusive` succeeds for one caller only."""
    path = _path(header)
    above = os.path.dirname(path)
    _make_above(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if header.get("exclusive"):
            return {"made": False}, b""
        if not os.path.isdir(path):
            raise
        return {"made": False}, b""
    sync_folder(above)
    return {"made": True}, b""


def _make_above(path: bytes) -> None:
    """Create parents, each 0700: os.makedirs sets only the last mode, and all threads share the umask."""
    if path and not os.path.isdir(path):
        _make_above(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def _put(header: Dict[str, Any]) -> Reply:
    return put_all({"folders": [], "files": [[header["path"], header["content"], header.get("executable")]]})


def _get(header: Dict[str, Any]) -> Reply:
    """Return up to `maximum` bytes from `offset` of a regular file; a symlink is not followed."""
    try:
        descriptor = os.open(_path(header), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"found": False}, b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        os.lseek(descriptor, header["offset"], os.SEEK_SET)
        return {"found": True}, read_up_to(descriptor, min(header["maximum"], 32 * 1024 * 1024))
    finally:
        os.close(descriptor)


def _names(header: Dict[str, Any]) -> Reply:
    try:
        names = os.listdir(_path(header))
    except FileNotFoundError:
        names = []
    return {"names": [protocol.text_of(name) for name in sorted(names)]}, b""


def _copy(header: Dict[str, Any]) -> Reply:
    """Copy with cp(1), which makes reflinks where the filesystem can and never hard links."""
    argv = ["cp", "-R", "--reflink=auto", "--no-preserve=mode", "--"]
    argv += [protocol.text_of(_path(header, key)) for key in ("source", "target")]
    reply, _ = _run({"words": argv, "timeout": 3600, "stdin": "", "folder": None})
    if reply["exit"] != 0:
        raise OSError(errno.EIO, "cp failed: {}".format(reply["stderr"][-300:]))
    return {}, b""


def _digest_path(header: Dict[str, Any]) -> Reply:
    descriptor = os.open(_path(header), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        summed = hashlib.sha256()
        while True:
            step()
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                return {"digest": summed.hexdigest()}, b""
            summed.update(chunk)
    finally:
        os.close(descriptor)


def _run(header: Dict[str, Any]) -> Reply:
    """Run one program by its argv. 127 if absent; killed with its process group on timeout (exit -9)."""
    argv = [protocol.bytes_of(argument) for argument in header["words"]]
    folder = protocol.bytes_of(header["folder"]) if header.get("folder") else None
    import subprocess  # start-up: only for this request

    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as problem:
        return {
            "exit": 127,
            "stdout": "",
            "stderr": "{}: {}".format(problem.strerror, argv[0].decode("utf-8", "replace")),
        }, b""
    ended = threading.Event()
    supervision = (process.pid, float(header["timeout"]), ended)
    threading.Thread(target=_kill_later, args=supervision, daemon=True).start()
    try:
        stdout, stderr = process.communicate(protocol.bytes_of(header["stdin"]))
    finally:
        ended.set()
    return {
        "exit": process.returncode,
        "stdout": protocol.text_of(stdout[:_OUTPUT]),
        "stderr": protocol.text_of(stderr[-65536:]),
    }, b""


def _kill_later(pid: int, seconds: float, ended: threading.Event) -> None:
    """Kill a process group if it has not ended after `seconds`; until then its program counts as progress."""
    deadline = time.monotonic() + seconds
    while not ended.wait(max(0.0, min(_POLL_SECONDS, deadline - time.monotonic()))):
        step()
        if time.monotonic() >= deadline:
            _kill_group(pid)
            return


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _run_at_most_once(header: Dict[str, Any]) -> Reply:
    """Run a program at most once ever: the creator of folder `marker` runs it and stores the result there."""
    marker = _path(header, "marker")
    result_file = os.path.join(marker, b"answer.json")
    made, _ = _make_folder({"path": header["marker"], "exclusive": True})
    if made["made"]:
        reply, _ = _run(header)
        put_all({"folders": [], "files": [[protocol.text_of(result_file), json.dumps(reply), False]]})
        return {"fresh": True, "answer": reply, "age": 0.0}, b""
    age = _clock(os.path.dirname(marker)) - os.stat(marker).st_ctime
    known = _read_result(result_file)
    return {"fresh": False, "answer": known, "age": max(0.0, age)}, b""


def _read_result(path: bytes) -> Optional[Dict[str, Any]]:
    try:
        with open(path, "rb") as stream:
            reply = json.loads(stream.read().decode("ascii"))
    except FileNotFoundError:
        return None
    return reply if isinstance(reply, dict) else None


def _clock(folder: bytes) -> float:
    """Return the time of the filesystem of `folder`, which another host may serve."""
    name = os.path.join(folder, b".hibali-" + os.urandom(16).hex().encode("ascii"))
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        os.unlink(name)


def _space(header: Dict[str, Any]) -> Reply:
    """Return an ordinary user's space at `path`, whether quotas are possible, and which names fit."""
    path = _existing_folder(_path(header))
    found = os.statvfs(path)
    # Some filesystems report no total number of inodes (btrfs) or no size (ramfs, FUSE): they have no such limit.
    inodes = found.f_favail if found.f_files else None
    free = found.f_bavail * found.f_frsize if found.f_blocks else None
    return {
        "bytes": free,
        "inodes": inodes,
        "quotas": can_be_at(path),
        "name_bytes": found.f_namemax,
        "folds_case": _folds(path),
    }, b""


def _attributes(header: Dict[str, Any]) -> Reply:
    """Return whether files at `path` can have `user.*` attributes."""
    return {"kept": supports_attributes(_existing_folder(_path(header)))}, b""


def _folds(path: bytes) -> bool:
    try:
        return folds_case(path)
    except OSError:  # the listing reports a folder that cannot be read
        return False


def _quotas(header: Dict[str, Any]) -> Reply:
    """Return the remaining space of each quota at `path`: owner, bytes, inodes. The programs may take seconds."""
    return {"rooms": [list(quota) for quota in quotas_at(_existing_folder(_path(header)))]}, b""


def _existing_folder(path: bytes) -> bytes:
    """Return the path, or the nearest existing folder above it."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _which(header: Dict[str, Any]) -> Reply:
    """Return where the requested programs are located."""
    names: List[str] = header["names"]
    import shutil  # start-up: only for this request

    return {"found": {name: shutil.which(name) for name in names}}, b""


COMMANDS: Dict[str, Callable[[Dict[str, Any]], Reply]] = {
    "expand": _expand,
    "resolve": _resolve,
    "identify": _identify,
    "filesystem": _filesystem,
    "stat": _stat,
    "is_private": _is_private,
    "make_folder": _make_folder,
    "put": _put,
    "put_all": put_all,
    "get": _get,
    "get_all": get_all,
    "names": _names,
    "copy": _copy,
    "digest_path": _digest_path,
    "run": _run,
    "run_once": _run_at_most_once,
    "inspect": _inspect,
    "space": _space,
    "quotas": _quotas,
    "attributes": _attributes,
    "which": _which,
}
