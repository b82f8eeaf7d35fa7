"""Recognise what describes a tool, and make a descriptor of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import UsageError
from hibali_plugins.formats.conversion import Conversion
from registry.problems import read_file_bytes

FORMATS = ("argparse", "bids", "cwl", "docopt", "psij")
_CWL_CLASS = re.compile(r"""^\s*["']?(?:class|cwlVersion)["']?\s*:""", re.MULTILINE)
_JOB = re.compile(r"""^\s*\{(?!.*"(?:class|cwlVersion|schema-version)").*"executable"\s*:""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Naming:
    """What the source may not say: the name and version of the tool, and the command that starts it; "" where it is to be found."""

    name: str = ""
    version: str = ""
    command: str = ""


def import_description(path: Path, kind: str, naming: Naming) -> Conversion:
    """Make a descriptor of a file, or of the folder of a BIDS app.

    Args:
        path: The file or folder.
        kind: One of `FORMATS`; "" to recognise it.
        naming: What the user says about the tool.

    Raises:
        UsageError: The file is not of this format, or of none.
        ConversionError: A part cannot be converted.
    """
    if kind == "bids" or (not kind and path.is_dir()):
        from hibali_plugins.formats.bids_app import convert_bids_app  # start-up: only for these

        return convert_bids_app(path, name=naming.name, version=naming.version, command=naming.command)
    raw = read_file_bytes(path)
    try:
        source = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        message = f"it is not UTF-8 at byte {problem.start}"
        raise UsageError("not-text", message, subject=str(path)) from None
    return _convert_text(path, kind or _recognise(path, source), source, naming)


def _recognise(path: Path, source: str) -> str:
    if path.suffix == ".py" and ".add_argument(" in source:
        return "argparse"
    if path.suffix == ".json" and _JOB.search(source):
        return "psij"
    if path.suffix == ".cwl" or (path.suffix != ".py" and _CWL_CLASS.search(source)):
        return "cwl"
    if re.search(r"\busage:", source, re.IGNORECASE):
        return "docopt"
    raise UsageError(
        "unknown-format",
        "it is no CWL document or PSI/J job, and no program with argparse or a docopt usage",
        subject=str(path),
        hint=f"If it is, name the format: --from {'|'.join(FORMATS)}",
    )


def _convert_text(path: Path, kind: str, source: str, naming: Naming) -> Conversion:
    subject, version = str(path), naming.version or "unknown"
    if kind == "cwl":
        from hibali_plugins.formats.cwl_document import read_yaml  # start-up: only for these
        from hibali_plugins.formats.cwl_import import convert_cwl  # start-up: only for these

        document = read_yaml(source, subject)
        return convert_cwl(document, source, subject, name=naming.name or path.stem, version=version)
    if kind == "psij":
        from hibali_plugins.formats.psij import convert_psij  # start-up: only for these

        return convert_psij(source, subject, name=naming.name, version=version)
    if kind == "docopt":
        from hibali_plugins.formats.docopt_usage import convert_docopt, usage_text  # start-up: only for these

        return convert_docopt(
            usage_text(source, subject), subject, name=naming.name, version=version, command=naming.command
        )
    from hibali_plugins.formats.argparse_source import (  # start-up: only for these
        convert_argparse,
        read_program,
    )

    return convert_argparse(
        read_program(source, subject),
        source,
        subject,
        name=naming.name or path.stem,
        version=version,
        command=naming.command or path.name,
    )
