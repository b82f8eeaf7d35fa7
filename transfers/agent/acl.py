"""Give other accounts access to a tree by POSIX access control lists, and take it away again (acl(5)).

The lists are read and written as extended attributes, in the kernel's format (`linux/posix_acl_xattr.h`), so that
no program is needed. A change never gives anything to anyone else: the mask of a list grows only after all other
entries were cut to what they could do before.
"""

import errno
import os
import stat
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from transfers.agent import protocol
from transfers.agent.progress import step
from transfers.agent.protocol import Problem, RefusedError, problem_of
from transfers.agent.safe_path import Roots, leaves_root_error

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")  # tag, permission bits, id

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NO_ID = 0xFFFFFFFF
READ, WRITE, EXECUTE = 4, 2, 1

_OWNER, _OWNING_GROUP, _MASK, _EVERYONE = [(tag, NO_ID) for tag in (USER_OBJ, GROUP_OBJ, MASK, OTHER)]
_NONE = (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_MOST_PROBLEMS = 100

Key = Tuple[int, int]  # tag and id
Acl = Dict[Key, int]  # permission bits; without `_MASK` there are no entries for further users and groups


def unpack(value: bytes) -> Acl:
    """Decode an attribute. Raises ValueError."""
    if len(value) < _VERSION.size or _VERSION.unpack_from(value)[0] != 2:
        raise ValueError("not an access control list of version 2")
    entries = value[_VERSION.size :]
    if len(entries) % _ENTRY.size:
        raise ValueError("the access control list is truncated")
    return {(tag, identifier): bits & 7 for tag, bits, identifier in _ENTRY.iter_unpack(entries)}


def pack(acl: Acl) -> bytes:
    """Encode a list; the kernel wants it sorted by tag and id."""
    return _VERSION.pack(2) + b"".join(_ENTRY.pack(key[0], acl[key], key[1]) for key in sorted(acl))


def from_mode(mode: int) -> Acl:
    """Return the list that permission bits alone are."""
    return {_OWNER: mode >> 6 & 7, _OWNING_GROUP: mode >> 3 & 7, _EVERYONE: mode & 7}


def granted(acl: Acl, key: Key, bits: int) -> Acl:
    """Return the list in which `key` may do exactly `bits`, and nobody else more than before."""
    new = _masked(acl)
    new[key] = bits
    return _with_mask(new)


def withdrawn(acl: Acl, key: Key) -> Acl:
    """Return the list without `key`, in which nobody else may do more than before."""
    if key not in acl:
        return acl
    new = _masked(acl)
    del new[key]
    return _with_mask(new)


def _masked(acl: Acl) -> Acl:
    """Return the list in which each entry has only the bits that are in effect."""
    mask = acl.get(_MASK, 7)
    return {key: bits if key in (_OWNER, _EVERYONE) else bits & mask for key, bits in acl.items()}


def _with_mask(acl: Acl) -> Acl:
    """Return the list with the mask that limits nothing, or without one if there are no further entries."""
    acl.pop(_MASK, None)
    if any(tag in (USER, GROUP) for tag, _ in acl):
        mask = 0
        for key, bits in acl.items():
            mask |= bits if key not in (_OWNER, _EVERYONE) else 0
        acl[_MASK] = mask
    return acl


class Person(NamedTuple("Person", [("key", Key), ("uid", int), ("groups", Set[int])])):
    """An account or a group at this machine: its key in lists, and whom the kernel takes it for; a group has the uid -1."""

    __slots__ = ()


def find_person(who: str) -> Person:
    """Return the account `user:NAME` or group `group:NAME`; a number is an id. Raises `RefusedError`."""
    import grp  # start-up: only for this request
    import pwd

    kind, _, name = who.partition(":")
    try:
        if name.isdigit() and int(name) >= NO_ID:
            raise KeyError
        if kind == "group":
            gid = int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
            return Person((GROUP, gid), -1, {gid})
        if kind != "user":
            raise KeyError
        if name.isdigit():
            uid = int(name)
            try:
                account = pwd.getpwuid(uid)
            except KeyError:
                return Person((USER, uid), uid, set())
        else:
            account = pwd.getpwnam(name)
        groups = set(os.getgrouplist(account.pw_name, account.pw_gid))
        return Person((USER, account.pw_uid), account.pw_uid, groups)
    except (KeyError, OverflowError):
        raise RefusedError("no-such-account", "there is no {} at this machine".format(who)) from None


def may(acl: Acl, owner: Tuple[int, int], person: Person, bits: int) -> bool:
    """Return whether a person may do `bits` (acl(5), "access check algorithm"); `owner` is uid and gid of the file."""
    mask = acl.get(_MASK, 7)
    if person.uid == 0:
        return True
    if person.uid == owner[0]:
        return acl[_OWNER] & bits == bits
    named = acl.get((USER, person.uid))
    if named is not None:
        return named & mask & bits == bits
    of_groups = [acl[_OWNING_GROUP]] if owner[1] in person.groups else []
    of_groups += [found for (tag, gid), found in acl.items() if tag == GROUP and gid in person.groups]
    if of_groups:
        return any(found & mask & bits == bits for found in of_groups)
    return acl[_EVERYONE] & bits == bits


def read_list(path: bytes, mode: int) -> Acl:
    """Return the access list of a name, from its mode if it has none."""
    try:
        return unpack(os.getxattr(path, ACCESS, follow_symlinks=False))
    except OSError as problem:
        if problem.errno not in _NONE:
            raise
        return from_mode(mode)


def read_default(path: bytes) -> Optional[Acl]:
    """Return the list that new entries of a folder inherit; None if it has none."""
    try:
        found = unpack(os.getxattr(path, DEFAULT, follow_symlinks=False))
    except OSError as problem:
        if problem.errno not in _NONE:
            raise
        return None
    return found or None


def set_bits(descriptor: int, mode: int) -> None:
    """Set permission bits like chmod(2): the bits of the group limit every further account, too.

    Unlike after chmod(2) the owning group has these bits itself, and nobody gets back what the mask had taken away.
    """
    acl = _own_list(descriptor)
    if acl is None:
        os.fchmod(descriptor, mode)
    else:
        _set(descriptor, ACCESS, _with_bits(acl, mode))


def set_first_bits(descriptor: int, mode: int, replaced: Optional[bytes], folder: bytes) -> None:
    """Set permission bits of a new file, which keeps what its folder, or the file that it replaces, gives to others.

    It was created with few bits, and they cut what it inherited. The bits of the group limit everybody but the
    owner and the others, so that a private file stays private below a default list.
    """
    if _own_list(descriptor) is None:
        os.fchmod(descriptor, mode)
        return
    acl = _own_list(replaced) if replaced is not None else None
    if acl is None:
        acl = read_default(folder) or from_mode(mode)
    _set(descriptor, ACCESS, _with_bits(acl, mode))


def _with_bits(acl: Acl, mode: int) -> Acl:
    new = _masked(acl)
    new.update(from_mode(mode))
    if any(tag in (USER, GROUP) for tag, _ in new):
        new[_MASK] = mode >> 3 & 7
    else:
        new.pop(_MASK, None)
    return new


def set_like(descriptor: int, replaced: bytes, mode: int, execute: bool) -> None:  # noqa: FBT001  # Python 3.6 style
    """Give a new file the permissions of the one at path `replaced`, whose bits are `mode`, except the execute bits.

    With `execute` whoever may read may also execute.
    """
    own, old = _own_list(descriptor), _own_list(replaced)
    if own is None and old is None:
        os.fchmod(descriptor, mode & 0o666 | (mode >> 2 & 0o111 if execute else 0))
        return
    acl = from_mode(mode) if old is None else old
    for key, bits in acl.items():
        acl[key] = bits & ~EXECUTE | (bits >> 2 & EXECUTE if execute else 0)
    _set(descriptor, ACCESS, acl)


def _own_list(target: Union[int, bytes]) -> Optional[Acl]:
    """Return the list with further entries of a descriptor or path; None if it has none."""
    try:
        if isinstance(target, int):
            acl = unpack(os.getxattr(target, ACCESS))
        else:
            acl = unpack(os.getxattr(target, ACCESS, follow_symlinks=False))
    except (OSError, ValueError):  # without lists, or without the file
        return None
    return acl if _MASK in acl else None


class Change(object):
    """A change of the access of one person to a tree, counted; with `write` it is made."""

    def __init__(self, person: Person, permission: str, write: bool) -> None:  # noqa: FBT001  # Python 3.6 style
        """Set the fields; `permission` is "read", "write", or "none" to withdraw it."""
        self._person = person
        self._permission = permission
        self._write = write
        self._umask = _umask()
        self.files = self.bytes = self.changed = self.failures = 0
        self.problems: List[List[Any]] = []

    def apply(self, parent: int, name: bytes, path: bytes) -> None:
        """Change a name in an open folder, and all below it; `path` is for messages. Symlinks are skipped.

        A folder is changed before it is listed, so that what appears meanwhile is listed or inherits.
        """
        try:
            self._apply(parent, name, path)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as problem:
            if isinstance(problem, OSError) and problem.errno in (errno.ENOTSUP, errno.EOPNOTSUPP):
                raise RefusedError(
                    "no-access-lists", "its filesystem has no POSIX access control lists"
                ) from None
            self.failures += 1
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append([protocol.text_of(path), self._problem(problem)])

    @staticmethod
    def _problem(problem: Exception) -> Problem:
        if isinstance(problem, OSError):
            return problem_of(problem)
        return ["failed", str(problem), False]

    def _apply(self, parent: int, name: bytes, path: bytes) -> None:
        step()
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            if not name.startswith(protocol.OWN_FOLDER + b"-"):  # a partial file
                self.files += 1
                self.bytes += found.st_size
            self._change(path_in(parent, name), found, self._bits_of_file(found.st_mode))
        elif stat.S_ISDIR(found.st_mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            folder = os.open(name, flags, dir_fd=parent)
            try:
                self._change(path_in(folder, b"."), os.fstat(folder), self._bits_of_folder())
                for child in sorted(map(os.fsencode, os.listdir(folder))):
                    if child != protocol.OWN_FOLDER:
                        self.apply(folder, child, path + b"/" + child if path else child)
            finally:
                os.close(folder)

    def _bits_of_file(self, mode: int) -> int:
        execute = EXECUTE if mode & 0o100 else 0
        return READ | execute | (WRITE if self._permission == "write" else 0)

    def _bits_of_folder(self) -> int:
        return READ | EXECUTE | (WRITE if self._permission == "write" else 0)

    def _change(self, path: bytes, found: os.stat_result, bits: int) -> None:
        before = read_list(path, found.st_mode)
        after = self._changed(before, bits)
        lists = [(ACCESS, after)] if after != before else []
        if stat.S_ISDIR(found.st_mode):
            fresh = self._first_default(after)
            inherited = read_default(path)
            wanted = self._changed(fresh if inherited is None else inherited, bits)
            if wanted != (inherited or {}) and (inherited is not None or self._permission != "none"):
                # without further entries it is as if there had never been one
                lists.append((DEFAULT, {} if wanted == fresh and self._permission == "none" else wanted))
        if not lists:
            return
        self.changed += 1
        if self._write:
            for attribute, acl in lists:
                _set(path, attribute, acl)

    def _first_default(self, acl: Acl) -> Acl:
        """Return what new entries of a folder get without a default list, and from then on with one: at most its own bits."""
        own, umask = _masked(acl), from_mode(~self._umask)
        return {key: own[key] & umask[key] for key in (_OWNER, _OWNING_GROUP, _EVERYONE)}

    def _changed(self, acl: Acl, bits: int) -> Acl:
        key = self._person.key
        return withdrawn(acl, key) if self._permission == "none" else granted(acl, key, bits)


def path_in(folder: int, name: bytes) -> bytes:
    """Return a path to a name in an open folder: attributes have no calls that take a folder."""
    return b"/proc/self/fd/%d/%s" % (folder, name)


def _set(target: Union[int, bytes], attribute: bytes, acl: Acl) -> None:
    if isinstance(target, int):
        os.setxattr(target, attribute, pack(acl))
    elif acl:
        os.setxattr(target, attribute, pack(acl), follow_symlinks=False)
    else:
        os.removexattr(target, attribute, follow_symlinks=False)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def blocking_folders(path: bytes, person: Person) -> Iterator[bytes]:
    """Yield the folders above an absolute, real path that a person cannot enter, the outermost first."""
    parts = path.split(b"/")[:-1]
    for count in range(1, len(parts) + 1):
        folder = b"/".join(parts[:count]) or b"/"
        found = os.stat(folder)
        if not may(read_list(folder, found.st_mode), (found.st_uid, found.st_gid), person, EXECUTE):
            yield folder


def describe(path: bytes) -> List[List[Any]]:
    """Return who may read or write a file or folder, besides its owner: name, and whether it may write."""
    import grp  # start-up: only for this request
    import pwd

    found = os.stat(path, follow_symlinks=False)
    acl = _masked(read_list(path, found.st_mode))
    people: List[List[Any]] = []
    for (tag, identifier), bits in sorted(acl.items()):
        if tag in (USER_OBJ, MASK) or not bits & READ:
            continue
        number = found.st_gid if tag == GROUP_OBJ else identifier
        name = "everyone"
        if tag != OTHER:
            kind = "user" if tag == USER else "group"
            name = "{}:{}".format(kind, number)
            try:
                known = pwd.getpwuid(number).pw_name if tag == USER else grp.getgrgid(number).gr_name
                name = "{}:{}".format(kind, known)
            except KeyError:
                pass
        people.append([name, bool(bits & WRITE)])
    return people


def answer(roots: Roots, header: Dict[str, Any]) -> Dict[str, Any]:
    """Answer a request about the access to an absolute path: `do` is plan, set or list.

    Raises:
        OSError, RefusedError: There is no such path, account or list; or a symlink leads out of the root.
    """
    path = os.path.normpath(protocol.bytes_of(header["path"]))
    above, name = os.path.split(path)
    if not name:
        raise RefusedError("unsafe-name", "/ is not shared")
    opened = roots.open(above)
    try:
        if not opened.inside:
            raise leaves_root_error(above)
        if opened.foreign is not None:
            raise opened.foreign
        if stat.S_ISLNK(os.stat(name, dir_fd=opened.descriptor, follow_symlinks=False).st_mode):
            raise RefusedError("symlink-in-the-way", "it is a symlink: name the place that it leads to")
        if header["access"] == "list":
            return {"people": describe(path_in(opened.descriptor, name))}
        person = find_person(header["who"])
        change = Change(person, header["permission"], header["access"] == "set")
        change.apply(opened.descriptor, name, b"")
        real = os.path.realpath(above) + b"/" + name
        blocked = [protocol.text_of(folder) for folder in blocking_folders(real, person)]
    finally:
        os.close(opened.descriptor)
    counted = {"files": change.files, "bytes": change.bytes, "changed": change.changed}
    failed = {"failures": change.failures, "problems": change.problems, "blocked": blocked}
    return {**counted, **failed}
