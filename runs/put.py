"""Laying a prepared run into its folder at the site, so that every step can be done again."""

from __future__ import annotations

import secrets

from hibali.errors import IncompleteError, UsageError
from hibali.text import printable
from runs.job_proxy import PROXY
from runs.prepare import Prepared
from runs.required import FILE
from transfers.far import Far


def put_files(far: Far, prepared: Prepared, proxy: bytes = b"") -> None:
    """Copies first, then what the job needs, the script last; all of it again is the same. `proxy` is that of the job."""
    folder = as_bytes(prepared.folder)
    _put_copies(far, prepared, folder)
    for path, content in prepared.configuration_files.items():
        target = folder + b"/work/" + as_bytes(path)
        far.make_folder(target.rpartition(b"/")[0])
        far.put(target, as_bytes(content))
    command = as_bytes(prepared.command_path)
    far.make_folder(command.rpartition(b"/")[0])
    far.put(command, as_bytes(prepared.command))
    if prepared.fast:
        far.put(folder + b"/fast.sh", as_bytes(prepared.fast))
    if prepared.required:
        far.put(folder + f"/{FILE}".encode("ascii"), as_bytes(prepared.required))
    if proxy:
        far.put(folder + PROXY, proxy)  # 0600 from its creation, as all that is put
    far.put(folder + b"/start", as_bytes(prepared.start))
    far.put(folder + b"/job.sh", as_bytes(prepared.job_script), executable=True)


def _put_copies(far: Far, prepared: Prepared, folder: bytes) -> None:
    """All private copies of inputs or none: a copy that was cut short is never taken for one."""
    final = folder + b"/inputs"
    if not prepared.copies or far.stat(final) is not None:
        return
    partial = final + b"-" + secrets.token_hex(8).encode("ascii")
    for each in prepared.copies:
        target = partial + as_bytes(each.target).removeprefix(final)
        far.make_folder(target.rpartition(b"/")[0])
        far.copy(as_bytes(each.source), target)
    far.move(partial, final)
    if far.stat(final) is None:
        raise IncompleteError("not-copied", "the inputs could not be put in place", about=printable(final))


def as_text(path: bytes) -> str:
    """Bytes of a path as text, surrogate escapes where they are not UTF-8."""
    return path.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """The bytes again; raises `UsageError` for half a character that JSON let through."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError("not-text", "an answer holds half a character", about=ascii(text[:80])) from None
