"""Make a descriptor of a BIDS app: a folder with a Dockerfile, a file `version` and the program that the image starts.

Source: Gorgolewski et al. 2017, doi:10.1371/journal.pcbi.1005209: every app takes `bids_dir output_dir analysis_level` and
`--participant_label`. All options are those in the source of the program, if it is in the folder; else the descriptor says that the
app's own are missing. The program is found as Docker and pip do: as a copied file, as a script, or as an entry point of the package.
"""

from __future__ import annotations

import glob
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hibali.errors import UsageError
from hibali_plugins.formats.argparse_source import Argument, Program, add_arguments, read_program
from hibali_plugins.formats.conversion import Conversion, Draft, Identifiers
from registry.problems import read_file_bytes


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
    if not source:
        draft.note("inputs", f"{entry} is not in the folder as a Python program: add the app's own arguments")
    draft.words.append(entry)
    made = add_arguments(draft, identifiers, program)
    data, output = _find_folders(program, made, f"{folder}: {entry}")
    data["type"], output["type"] = "File", "String"
    _place_output(draft, output, entry)
    found = {each.names[0] for each in program.arguments if made.get(each.name) in (data, output)}
    draft.notes[:] = [each for each in draft.notes if each.path not in found]
    draft.outputs.append(
        {
            "id": identifiers.new_id("output"),
            "name": "Output folder",
            "description": "The results of the app.",
            "path-template": output["value-key"],
        }
    )
    found_version = version or _read_text(folder / "version").strip() or "unknown"
    tag = re.sub(r"[^A-Za-z0-9_.-]+", "-", found_version).lstrip(".-")[:128]
    repository = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "app"
    image = f"bids/{repository}" + ("" if found_version == "unknown" or not tag else f":{tag}")
    draft.note("container-image", f"assumed: {image}, as the images of github.com/BIDS-Apps")
    more: dict[str, Any] = {"container-image": {"type": "docker", "image": image}}
    description = program.description or f"BIDS app {title}."
    if not source:
        description += " The arguments of its own are missing in this descriptor."
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
        except (ValueError, RecursionError):
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
    """Return the source of the program, and what it says; "" and what every app takes without a program in the folder."""
    words = [each.strip("'\"") for each in entry.split()]
    for number, word in reversed(list(enumerate(words))):
        is_module = number > 0 and words[number - 1] == "-m"
        for path, function in _find_programs(folder, word, is_module=is_module):
            source = _read_text(path)
            if path.suffix == ".py" or re.match(r"#!.*\bpython", source):
                return _follow_imports(folder, path, source, function)
    return "", Program(arguments=list(_STANDARD))


def _find_programs(folder: Path, word: str, *, is_module: bool) -> Iterator[tuple[Path, str]]:
    """Yield the files that a word of the entry point can be, the most probable first, each with the function that it calls."""
    if is_module:
        yield from ((path, "") for path in _files_of_module(folder, f"{word}.__main__"))
        yield from ((path, "") for path in _files_of_module(folder, word))
        return
    parts = [part for part in Path(word).parts if part not in {"/", ".."}]
    for count in range(len(parts), 0, -1):  # /code/scripts/run.py was copied from scripts/run.py
        if (path := folder.joinpath(*parts[-count:])).is_file():
            yield path, ""
    copied = rf"^\s*(?:COPY|ADD)\s+(?:--\S+\s+)*(\S+)\s+{re.escape(word)}/?\s*$"
    for each in re.findall(copied, _read_text(folder / "Dockerfile"), re.MULTILINE | re.IGNORECASE):
        if ".." not in each and (path := folder / each.lstrip("/")).is_file():
            yield path, ""
    script = rf"""(?:^|["'\s]){re.escape(Path(word).name)}["']?\s*=\s*["']?([\w.]+)(?::(\w+))?"""
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        for module, function in re.findall(script, _read_text(folder / name), re.MULTILINE):
            yield from ((path, function) for path in _files_of_module(folder, module))
    below = sorted(folder.glob(f"*/{glob.escape(parts[-1])}")) if parts else []
    yield from ((path, "") for path in below if path.is_file())  # such as `scripts` of setup.py


def _files_of_module(folder: Path, module: str) -> list[Path]:
    """Return the files that a module of a package in the folder can be."""
    steps = [part for part in module.split(".") if part]
    bases = [base.joinpath(*steps) for base in (folder, folder / "src")]
    files = [each for base in bases for each in (base.with_suffix(".py"), base / "__init__.py")]
    return [each for each in files if each.is_file()]


def _follow_imports(folder: Path, path: Path, source: str, function: str) -> tuple[str, Program]:
    """Read a program, or the one module of the app that makes its parser."""
    if ".add_argument(" in source:
        return source, read_program(source, str(path), function)
    package = ".".join(path.relative_to(folder).with_suffix("").parts[:-1]).removeprefix("src").strip(".")
    others: dict[Path, str] = {}
    for dots, module, names in re.findall(
        r"^\s*from\s+(\.*)([\w.]*)\s+import\s+([^#\n]+)", source, re.MULTILINE
    ):
        base = f"{package}.{module}" if dots else module
        for name in (base, *(f"{base}.{each.strip(' ()')}" for each in names.split(","))):
            others |= {each: _read_text(each) for each in _files_of_module(folder, name)}
    parsers = {each: text for each, text in others.items() if ".add_argument(" in text}
    if len(parsers) != 1:
        raise UsageError(
            "no-usage",
            f"the program has no add_argument, and {len(parsers) or 'none'} of the modules that it imports have",
            subject=str(path),
            hint="Import the file that makes the parser: hibali pipelines import FILE.py --command COMMAND",
        )
    [(where, text)] = parsers.items()
    return text, read_program(text, str(where))


_STANDARD = (  # what every app takes
    Argument(("bids_dir",), {"help": "The folder of the BIDS dataset."}, frozenset(), 0),
    Argument(("output_dir",), {"help": "The folder for the results."}, frozenset(), 0),
    Argument(
        ("analysis_level",),
        {"help": "The level of the analysis.", "choices": ["participant", "group"]},
        frozenset(),
        0,
    ),
    Argument(
        ("--participant_label",),
        {"help": "The participants to process, without sub-; otherwise all.", "nargs": "+"},
        frozenset(),
        0,
    ),
)


def _find_folders(
    program: Program, made: dict[str, dict[str, Any]], subject: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs for the dataset and for the results: by their names, else the first two positional arguments."""
    positional = [made[each.name] for each in program.arguments if not each.is_option and each.name in made]
    data = made.get("bids_dir") or next(iter(positional), None)
    output = made.get("output_dir") or next((each for each in positional[1:2] if each is not data), None)
    if data is None or output is None:
        raise UsageError(
            "no-usage",
            "its program takes no bids_dir and output_dir, as BIDS apps do",
            subject=subject,
            hint="Import the program itself: hibali pipelines import FILE.py --command COMMAND",
        )
    return data, output


def _place_output(draft: Draft, output: dict[str, Any], entry: str) -> None:
    """Let the command line make the folder for the results, which is also the output."""
    key = output["value-key"]
    output.pop("optional", None)
    if flag := output.pop("command-line-flag", ""):
        draft.words[draft.words.index(key)] = f"{flag} {key}"
    draft.words[0] = f"mkdir -p {key} && {entry}"


def _read_text(path: Path) -> str:
    """Return the text of a file, "" if it is missing."""
    return read_file_bytes(path).decode("utf-8", "replace") if path.is_file() else ""
