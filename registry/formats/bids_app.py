"""Make a descriptor of a BIDS app: a folder with a Dockerfile, a file `version` and the program that the image starts.

Source: Gorgolewski et al. 2017, doi:10.1371/journal.pcbi.1005209: every app takes `bids_dir output_dir analysis_level` and
`--participant_label`. Other options are those in the source of the program, if it is in the folder and uses argparse.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from hibali.errors import UsageError
from registry.formats.argparse_source import Argument, Program, add_arguments, read_program
from registry.formats.conversion import Conversion, Draft, Identifiers
from registry.problems import read_file_bytes

_LEVELS = ["participant", "group"]


def convert_bids_app(folder: Path, *, name: str, version: str, command: str) -> Conversion:
    """Make a descriptor.

    Args:
        folder: That of the app.
        name: The name; "" for that of the folder.
        version: The version; "" for that in the file `version`.
        command: What starts the app, as text for a shell; "" for the image's entry point.

    Raises:
        UsageError: There is no entry point, or the program cannot be read.
    """
    title = name or folder.resolve().name
    entry = command or _entry_point(folder)
    source, program = _read_source(folder, entry)
    draft = Draft()
    identifiers = Identifiers(source)
    _add_standard(program)
    draft.words.append(entry)
    made = add_arguments(draft, identifiers, program)
    data, output = made["bids_dir"], made["output_dir"]
    data["type"], output["type"] = "File", "String"
    draft.words[0] = f"mkdir -p {output['value-key']} && {entry}"
    draft.notes[:] = [each for each in draft.notes if each.path not in {"bids_dir", "output_dir"}]
    draft.outputs.append(
        {
            "id": identifiers.new_id("output"),
            "name": "Output folder",
            "description": "The results of the app.",
            "path-template": output["value-key"],
        }
    )
    found_version = version or _read_text(folder / "version").strip() or "unknown"
    image = f"bids/{title.lower()}" + ("" if found_version == "unknown" else f":{found_version}")
    draft.note("container-image", f"assumed: {image}, as the images of github.com/BIDS-Apps")
    more: dict[str, Any] = {"container-image": {"type": "docker", "image": image}}
    description = program.description or f"BIDS app {title}."
    return draft.finish(title, found_version, description, str(folder), more)


def _entry_point(folder: Path) -> str:
    """Return the last ENTRYPOINT of the Dockerfile, as text for a shell."""
    found = ""
    text = _read_text(folder / "Dockerfile").replace("\\\n", " ")
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "ENTRYPOINT":
            found = rest.strip()
    if found.startswith("["):
        try:
            words = json.loads(found)
        except ValueError:
            words = None
        if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
            raise UsageError(
                "no-entry-point", "its ENTRYPOINT is not valid JSON", subject=f"{folder}/Dockerfile"
            )
        found = " ".join(map(shlex.quote, words))
    if not found:
        raise UsageError(
            "no-entry-point",
            "it has no ENTRYPOINT",
            subject=f"{folder}/Dockerfile",
            hint="Give what starts the app: --command '/run.py'",
        )
    return found


def _read_source(folder: Path, entry: str) -> tuple[str, Program]:
    """Return the source of the program, if it is in the folder, and what it says."""
    for word in reversed(entry.split()):
        path = folder / Path(word.strip("'\"")).name
        if path.suffix == ".py" and path.is_file():
            source = _read_text(path)
            return source, read_program(source, str(path))
    return "", Program()


def _add_standard(program: Program) -> None:
    """Add what every app takes, where the source does not say it."""
    known = {each.name for each in program.arguments}
    standard = [
        Argument(("bids_dir",), {"help": "The folder of the BIDS dataset."}, frozenset(), 0),
        Argument(("output_dir",), {"help": "The folder for the results."}, frozenset(), 0),
        Argument(
            ("analysis_level",), {"help": "The level of the analysis.", "choices": _LEVELS}, frozenset(), 0
        ),
        Argument(
            ("--participant_label",),
            {"help": "The participants to process, without sub-; otherwise all.", "nargs": "+"},
            frozenset(),
            0,
        ),
    ]
    missing = [each for each in standard if each.name not in known]
    program.arguments[:] = [*missing, *program.arguments] if len(missing) < len(standard) else standard


def _read_text(path: Path) -> str:
    """Return the text of a file, "" if it is missing."""
    return read_file_bytes(path).decode("utf-8", "replace") if path.is_file() else ""
