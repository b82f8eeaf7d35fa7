"""Determine whether two paths are the same folder or one contains the other, across mounts and symlinks.

A folder is described by the device and inode of each folder on its path, and by its location on its
filesystem in /proc/self/mountinfo (proc_pid_mountinfo(5)), the same for all bind mounts of it.
"""

import os
import re
from typing import Any, Dict, List, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.protocol import is_in

SAME, INSIDE, AROUND, SHARED = "same", "inside", "around", "shared"
BOOT = b"/proc/sys/kernel/random/boot_id"
MOUNTS = b"/proc/self/mountinfo"
LONGEST = 4 * 1024 * 1024  # limit for mountinfo

_MOST_BYTES = 1024 * 1024  # of mount names below one folder; further ones are not compared
_ESCAPED = re.compile(rb"\\([0-7]{3})")

Mount = Tuple[bytes, str, bytes]  # mount point, device of the filesystem, its mounted folder
# device, path on that filesystem, mount point relative to the folder ("" for itself)
Place = Tuple[str, bytes, bytes]
Identity = Dict[str, Any]


def boot_identifier() -> str:
    """Return the boot id of this host, so that an old pid is not taken for a running process (proc(5))."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def this_machine() -> str:
    """Return an identifier shared by all processes of this machine until it reboots."""
    return boot_identifier() or os.uname().nodename


def identify(path: bytes, machine: str) -> Identity:
    """Describe the folder or file at an absolute path, which need not exist.

    `path` is the real path; `folders` has [device, inode, ctime in ns, owner, group, mode] of `/` and of each existing name on the path;
    `missing` is how many names at its end do not exist. `places` has the location of the folder itself, then of all mounts below it.
    """
    real = os.path.realpath(path)
    folders, missing = _folders(real)
    try:
        with open(MOUNTS, "rb") as stream:
            mounts = read_mounts(stream.read(LONGEST))
    except OSError:
        mounts = []
    return identity_of(machine, places_of(real, mounts), folders, missing, real)


def identity_of(
    machine: str,
    places: List[Place],
    folders: Optional[List[List[int]]] = None,
    missing: Optional[int] = None,
    path: bytes = b"",
) -> Identity:
    """Return an identity for JSON; places are compared only between identities with equal `machine`.

    `missing` is None for a path that does not exist, if the number of its missing names is not known.
    """
    encoded = [[device, protocol.text_of(at), protocol.text_of(below)] for device, at, below in places]
    return {
        "machine": machine,
        "places": encoded,
        "folders": folders or [],
        "missing": missing,
        "path": protocol.text_of(path),
    }


def child(identity: Identity, name: bytes) -> Identity:
    """Return the identity of a name in a folder, as far as the folder's place determines it."""
    return identity_of(
        identity["machine"], [(device, _joined(at, name), b"") for device, at, _ in _places(identity)[:1]]
    )


def check_identity(identity: Identity) -> Identity:
    """Return a received identity; raises ValueError, TypeError or KeyError if its shape is wrong."""
    for _, at, _ in _places(identity):
        if not at.startswith(b"/"):
            raise ValueError("not an absolute path")
    for folder in identity["folders"]:
        if len(folder) != 6 or not all(isinstance(value, int) for value in folder):
            raise ValueError("not a folder")
    missing = None if identity["missing"] is None else int(identity["missing"])
    if missing is not None and missing < 0:
        raise ValueError("not a number of names")
    path = protocol.bytes_of(identity["path"])
    return identity_of(str(identity["machine"]), _places(identity), list(identity["folders"]), missing, path)


def _places(identity: Identity) -> List[Place]:
    return [
        (str(device), protocol.bytes_of(at), protocol.bytes_of(below))
        for device, at, below in identity["places"]
    ]


def mounts_below(identity: Identity) -> List[bytes]:
    """Return the mount points below a folder, relative to it."""
    return [below for _, _, below in _places(identity)[1:]]


def _folders(real: bytes) -> Tuple[List[List[int]], int]:
    found = []  # type: List[List[int]]
    at = b"/"
    names = [b""] + [name for name in real.split(b"/") if name]
    for position, name in enumerate(names):
        at = os.path.join(at, name) if name else at
        try:
            status = os.lstat(at)
        except OSError:
            return found, len(names) - position
        found.append(
            [
                status.st_dev,
                status.st_ino,
                status.st_ctime_ns,
                status.st_uid,
                status.st_gid,
                status.st_mode,
            ]
        )
    return found, 0


def read_mounts(content: bytes) -> List[Mount]:
    """Return the mounts in order: a later mount hides an earlier one at the same mount point."""
    found = []
    for line in content.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) > 5 and fields[3].startswith(b"/") and fields[4].startswith(b"/"):
            device = fields[2].decode("ascii", "replace")
            found.append((_unescaped(fields[4]), device, _unescaped(fields[3])))
    return found


def _unescaped(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found.group(1), 8) & 255]), field)


def places_of(real: bytes, mounts: List[Mount]) -> List[Place]:
    """Return the location of a folder on its filesystem, and of all mounts below it."""
    itself = None  # type: Optional[Mount]
    below = []  # type: List[Place]
    size = 0
    for mount in mounts:
        point = mount[0]
        if is_in(real, point):
            itself = itself if itself and len(itself[0]) > len(point) else mount
        elif is_in(point, real) and size < _MOST_BYTES:
            size += len(point) + len(mount[2])
            below.append((mount[1], mount[2], point[len(real.rstrip(b"/")) :].strip(b"/")))
    if itself is None:
        # Without mountinfo only paths can be compared; there are no mount namespaces either.
        return [("path", real, b"")]
    point, device, root = itself
    return [(device, _joined(root, real[len(point.rstrip(b"/")) :]), b""), *below]


def _joined(root: bytes, suffix: bytes) -> bytes:
    suffix = suffix.strip(b"/")
    return root.rstrip(b"/") + b"/" + suffix if suffix else root


def relation(one: Identity, other: Identity, any_name: bool = False) -> Optional[str]:  # noqa: FBT001, FBT002  # Python 3.6 style
    """Return how `one` relates to `other`: SAME, INSIDE, AROUND, SHARED, or None if they are disjoint.

    SHARED: neither contains the other, but one folder is mounted in both, under different names; with `any_name`
    also under the same name, where a copy changes nothing, but a removal removes the copy.
    """
    return _by_folders(one, other) or _by_places(one, other, any_name)


def common_folder(one: Identity, other: Identity) -> Optional[Tuple[int, int]]:
    """Return how many names below `/` the innermost folder that both paths pass is, in each; None if there is none."""
    ones, others = _comparable(one, other)
    for depth in reversed(range(len(ones))):
        if ones[depth] in others:
            return depth, others.index(ones[depth])
    return None


def sees_folder(one: Identity, other: Identity) -> bool:
    """Return whether the path of `one` passes the innermost existing folder of `other`, whose change time may have changed."""
    ones, others = ([[folder[1], *folder[3:]] for folder in each["folders"][1:]] for each in (one, other))
    if other["missing"] == 0 and one["missing"] != 0:
        return False
    return bool(others) and others[-1] in ones  # below `/`, which is alike on all machines


def _by_folders(one: Identity, other: Identity) -> Optional[str]:
    ones, others = _comparable(one, other)
    inside = bool(others) and other["missing"] == 0 and others[-1] in ones
    around = bool(ones) and one["missing"] == 0 and ones[-1] in others
    return _named(inside, around)


def _comparable(one: Identity, other: Identity) -> Tuple[List[Tuple[int, ...]], List[Tuple[int, ...]]]:
    """Return the folders of both; device numbers differ between machines, but inodes and change times do not."""
    known = bool(one["machine"]) and one["machine"] == other["machine"]
    first, last = (0, 2) if known else (1, 6)
    ones = [tuple(folder[first:last]) for folder in one["folders"]]
    others = [tuple(folder[first:last]) for folder in other["folders"]]
    return ones, others


def _by_places(one: Identity, other: Identity, any_name: bool) -> Optional[str]:  # noqa: FBT001  # Python 3.6 style
    ones, others = _places(one), _places(other)
    if not one["machine"] or one["machine"] != other["machine"] or not ones or not others:
        return None
    inside = any(device == ones[0][0] and is_in(ones[0][1], at) for device, at, _ in others)
    around = any(device == others[0][0] and is_in(others[0][1], at) for device, at, _ in ones)
    if inside and around and ones[0][:2] != others[0][:2]:
        inside = is_in(ones[0][1], others[0][1])
        around = not inside
    return _named(inside, around) or (SHARED if _have_common_folder(ones, others, any_name) else None)


def _have_common_folder(ones: List[Place], others: List[Place], any_name: bool) -> bool:  # noqa: FBT001  # Python 3.6 style
    """Return whether both have a common folder, under different names or with `any_name` under any."""
    there = {}  # type: Dict[str, List[Tuple[bytes, bytes]]]
    for device, at, below in others:
        there.setdefault(device, []).append((at, below))
    return any(
        (any_name and (is_in(at, at_there) or is_in(at_there, at)))
        or _differ(at, below, at_there, below_there)
        for device, at, below in ones
        for at_there, below_there in there.get(device, [])
    )


def _differ(at: bytes, below: bytes, at_there: bytes, below_there: bytes) -> bool:
    if is_in(at, at_there):
        return below != _joined(below_there, at[len(at_there.rstrip(b"/")) :]).strip(b"/")
    if is_in(at_there, at):
        return below_there != _joined(below, at_there[len(at.rstrip(b"/")) :]).strip(b"/")
    return False


def _named(inside: bool, around: bool) -> Optional[str]:  # noqa: FBT001  # both are the answer
    if inside and around:
        return SAME
    return INSIDE if inside else AROUND if around else None
