"""Find descriptors in the catalogue; check and upgrade descriptors and invocations in files."""

from __future__ import annotations

import json
from pathlib import Path

from hibali.documents import read_json_file
from hibali.errors import NotFoundError, UsageError
from hibali_cli.options import Common
from registry.boutiques_schema import upgrade_document
from registry.catalogue import Catalogue
from registry.command_line import build_command_line
from registry.descriptor import find_advice, find_repeated_advice, read_descriptor
from registry.invocation import read_invocation
from registry.pipeline import Pipeline
from registry.problems import DescriptorError, InvocationError, Problem, read_file_bytes


def upgrade_descriptor(common: Common, file: str) -> int | None:
    """Print an older descriptor in the current schema."""
    upgraded, changes = upgrade_document(read_json_file(Path(file)), file)
    text = json.dumps(upgraded, indent=4)
    read_descriptor(text.encode(), file)
    if common.json:
        records = [each.to_record() for each in changes]
        common.output.record("descriptor", {"file": file, "descriptor": upgraded, "changes": records})
    else:
        for each in changes:
            common.output.warn(f"{file}: {each}")
        common.output.text(text + "\n")
    return None


def validate_files(common: Common, file: str, invocation: str | None, *, strict: bool) -> int | None:
    """Check a descriptor, and an invocation of it."""
    raw, file = _read(common, file)
    pipeline = read_descriptor(raw, file)
    advice = find_advice(raw, file)
    if strict and advice:
        raise DescriptorError(advice, subject=file)
    answer_advice: list[Problem] = []
    if invocation is not None:
        checked = read_invocation(pipeline, Path(invocation))
        answer_advice = find_repeated_advice(read_file_bytes(Path(invocation)))
        answer_advice += [
            Problem(each, f"its default does not apply together with {other}", advice=True)
            for each, other in checked.withdrawn.items()
        ]
        if strict and answer_advice:
            raise InvocationError(answer_advice, reference=pipeline.reference, subject=invocation)
    if common.json:
        common.output.record(
            "validation",
            {
                "file": file,
                "invocation": invocation,
                "name": pipeline.name,
                "version": pipeline.version,
                "digest": pipeline.digest,
                "valid": True,
                "advice": [each.to_record() for each in advice],
                "invocation_advice": [each.to_record() for each in answer_advice],
            },
        )
    else:
        for each in advice:
            common.output.warn(f"{file}: advice: {each}")
        common.output.line(f"{file}: valid ({pipeline.reference})")
        for each in answer_advice:
            common.output.warn(f"{invocation}: advice: {each}")
        if invocation is not None:
            common.output.line(f"{invocation}: valid")
    return None


def evaluate_invocation(common: Common, file: str, invocation: str) -> int | None:
    """Show the outputs of an invocation, relative to the work folder, without running it."""
    raw, file = _read(common, file)
    pipeline = read_descriptor(raw, file)
    checked = read_invocation(pipeline, Path(invocation))
    paths = dict(checked.file_inputs())  # in outputs, staged files are their names
    command = build_command_line(pipeline, checked, paths=paths, work_folder="/")
    if common.json:
        for each in command.outputs:
            record = {"pipeline": pipeline.reference, "id": each.id, "path": each.path}
            more = {"optional": each.optional, "list": each.is_list, "pattern": each.is_pattern}
            common.output.record("expected-output", {**record, **more})
        return None
    rows = [(each.id, each.path, "optional" if each.optional else None) for each in command.outputs]
    common.output.table(["output", "path", "optional"], rows)
    return None


def _read(common: Common, word: str) -> tuple[bytes, str]:
    """Return the bytes of a descriptor, and its path or NAME@VERSION.

    Raises `NotFoundError` for a name that is neither a file nor in the catalogue.
    """
    path = Path(word)
    if "/" in word or word.endswith(".json"):
        return read_file_bytes(path), word
    try:
        pipeline = Catalogue().find(word)
    except (NotFoundError, UsageError) as problem:
        if path.exists():
            return read_file_bytes(path), word
        if isinstance(problem, NotFoundError):
            problem.hint = f"{problem.hint} A file: ./{word}".strip()
        raise
    if path.exists():
        common.output.warn(f"{pipeline.reference} of the catalogue is checked, not the file ./{word}")
    return pipeline.raw, pipeline.reference


def find_pipeline(common: Common, catalogue: Catalogue, name: str) -> Pipeline:
    """Return a pipeline of the catalogue; warn if it is deprecated. Raises `NotFoundError`."""
    found = catalogue.find(name)
    deprecation = catalogue.deprecation(found)
    if deprecation is not None:
        common.output.warn(f"{found.reference}: {deprecation}")
    return found
