"""Laying all tasks of a sweep into their folders at the site in few round trips, so that it can be done again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from hibali.errors import IncompleteError
from hibali.text import printable
from runs.job_proxy import PROXY
from runs.pilot.put import pristine, program_files
from runs.prepare import Prepared
from runs.put import as_bytes
from runs.required import FILE
from runs.run import Run
from runs.script import array_script
from runs.sweeps.sweep import chunk_folder, sweep_of
from transfers.far import Far, SmallFile

_AT_ONCE = 1000  # tasks whose files are held in memory
_PARTIAL = b"tasks-"


def put_tasks(
    far: Far, run: Run, prepare: Callable[[], Iterable[tuple[int, Prepared]]], proxy: Callable[[], bytes]
) -> None:
    """The folders of all tasks or none of them, and those of the chunks, or a pilot's program, before; nothing where they are there.

    What an earlier call left half-done is removed: no job has seen it. `proxy` makes that of each task, b"" for none.
    """
    final = run.folder + b"/tasks"
    pilot = sweep_of(run).pilot
    if far.stat(final) is not None:
        return
    for name in far.names(run.folder):
        if name.startswith(_PARTIAL):
            far.remove_tree(run.folder + b"/" + name)
    partial = run.folder + b"/" + _PARTIAL + secrets.token_hex(8).encode("ascii")
    far.make_folder(partial)
    directives: dict[str, None] = {}
    prepared = iter(prepare())
    content = proxy()
    while some := list(islice(prepared, _AT_ONCE)):
        # those for fast storage differ: one job array asks for what any of its tasks needs
        directives |= {line: None for _, each in some for line in each.directives}
        _put_some(far, [each for _, each in some], final, partial, pristine if pilot else _nothing, content)
    if pilot is None:
        _put_chunks(far, run, tuple(directives))
    else:
        far.put_all(program_files(run.folder, pilot), [run.folder + b"/pilot", run.folder + b"/chunks"])
    far.move(partial, final)
    if far.stat(final) is None:
        raise IncompleteError("not-put", "the tasks could not be put in place", about=printable(final))


def _nothing(prepared: Prepared) -> None:
    """A task of a job array is run once, and its folder is never made anew."""
    del prepared


def _put_some(
    far: Far,
    prepared: list[Prepared],
    final: bytes,
    partial: bytes,
    remember: Callable[[Prepared], bytes | None],
    proxy: bytes,
) -> None:
    def placed(path: str) -> bytes:
        return partial + as_bytes(path).removeprefix(final)

    folders: dict[bytes, None] = {}
    files: list[SmallFile] = []
    copies: list[tuple[bytes, bytes]] = []
    for each in prepared:
        top = placed(each.folder)
        found = list(_files_of(each, placed))
        copied = [(as_bytes(copy.source), placed(copy.target)) for copy in each.copies]
        wanted = [top, top + b"/work", *(_above(file.path) for file in found)]
        wanted += [_above(target) for _, target in copied]
        for folder in wanted:
            folders.update(dict.fromkeys(_down_to(folder, top)))
        files += found
        if proxy:
            files.append(SmallFile(top + PROXY, proxy))
        remembered = remember(each)
        if remembered is not None:
            files.append(SmallFile(top + b"/pristine.json", remembered))
        copies += copied
    far.put_all(files, list(folders))
    far.copy_all(copies)


def _files_of(prepared: Prepared, placed: Callable[[str], bytes]) -> Iterator[SmallFile]:
    for path, content in prepared.configuration_files.items():
        yield SmallFile(placed(f"{prepared.folder}/work/{path}"), as_bytes(content))
    yield SmallFile(placed(prepared.command_path), as_bytes(prepared.command))
    if prepared.fast:
        yield SmallFile(placed(f"{prepared.folder}/fast.sh"), as_bytes(prepared.fast))
    if prepared.required:
        yield SmallFile(placed(f"{prepared.folder}/{FILE}"), as_bytes(prepared.required))
    yield SmallFile(placed(f"{prepared.folder}/start"), as_bytes(prepared.start))


def _above(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _down_to(folder: bytes, top: bytes) -> list[bytes]:
    """The folders from `top` to this one, `top` first."""
    found = [top]
    for part in folder[len(top) + 1 :].split(b"/") if folder != top else ():
        found.append(found[-1] + b"/" + part)
    return found


def _put_chunks(far: Far, run: Run, directives: tuple[str, ...]) -> None:
    """The script of each job array, and which task each of its indices is."""
    folders = [run.folder + b"/chunks"]
    files = []
    for chunk in sweep_of(run).chunks:
        folder = chunk_folder(run, chunk)
        folders.append(folder)
        lines = "".join(f"{number:d}\n" for number in chunk.tasks)
        files.append(SmallFile(folder + b"/tasks", lines.encode("ascii")))
        script = array_script(run.id, chunk.number, directives)
        files.append(SmallFile(folder + b"/job.sh", as_bytes(script), executable=True))
    far.put_all(files, folders)
