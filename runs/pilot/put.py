"""What a pilot needs at its site: the program beside the tasks, a folder for each allocation, and what a task's folder was before it began."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from hibali.strict_json import canonical_json
from runs.pilot.library import SHA256
from runs.pilot.pilot import Pilot
from runs.pilot.scripts import allocation_script, task_script
from runs.pilot.site import program
from runs.prepare import Prepared
from runs.put import as_bytes
from transfers.far import Far, SmallFile


def program_files(folder: bytes, pilot: Pilot) -> list[SmallFile]:
    """The program and what it is told, of a run in this folder."""
    plan = {"library": pilot.library, "sha256": SHA256, "cores": pilot.cores, "asked": pilot.asked}
    below = folder + b"/pilot/"
    return [
        SmallFile(below + b"program.py", program()),
        SmallFile(below + b"plan.json", canonical_json(plan)),
        SmallFile(below + b"python", as_bytes(pilot.python) + b"\n"),
    ]


def allocation_texts(run: str, chunk: int, tasks: Iterable[int], pilot: Pilot) -> dict[str, str]:
    """The files of an allocation, by name in its folder."""
    return {
        "task.sh": task_script(run, chunk),
        "tasks": "".join(f"{number:d}\n" for number in tasks),
        "job.sh": allocation_script(run, chunk, pilot.directives),
    }


def put_allocation(far: Far, folder: bytes, texts: dict[str, str]) -> None:
    """Lay them ready, before anything is submitted."""
    files = [
        SmallFile(folder + b"/" + as_bytes(name), as_bytes(text), executable=name == "job.sh")
        for name, text in texts.items()
    ]
    far.put_all(files, [folder])


def pristine(prepared: Prepared) -> bytes | None:
    """What is in the folders of a task that its tool can write to, before it begins; None for nothing."""
    folder = as_bytes(prepared.folder) + b"/"
    files = {
        folder + b"work/" + as_bytes(path): as_bytes(content)
        for path, content in prepared.configuration_files.items()
    }
    command = as_bytes(prepared.command_path)
    if command.startswith(folder + b"inputs/"):
        files[command] = as_bytes(prepared.command)
    copies = {as_bytes(each.target): as_bytes(each.source) for each in prepared.copies}
    if not files and not copies:
        return None
    return canonical_json(
        {
            "files": [[_text(path.removeprefix(folder)), _text(content)] for path, content in files.items()],
            "copies": [
                [_text(source), _text(target.removeprefix(folder))] for target, source in copies.items()
            ],
        }
    )


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
