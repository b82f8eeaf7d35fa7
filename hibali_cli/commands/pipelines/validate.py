"""`hibali pipelines validate`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali.errors import NotFoundError, UsageError
from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "validate",
    examples=[
        ("hibali pipelines validate bet.json", "Name everything that is wrong with a descriptor."),
        ("hibali pipelines validate bet.json bet-invocation.json", "Check an invocation against it, too."),
        ("hibali pipelines validate fsl_bet@1.0.0", "Check one of the catalogue."),
        ("hibali pipelines validate --strict bet.json", "Accept nothing that has to be excused."),
    ],
)
@click.argument("file", metavar="FILE|NAME[@VERSION]")
@click.argument("invocation", required=False)
@click.option("--strict", is_flag=True, help="End with 2 where there is advice, too.")
def command(common: Common, file: str, invocation: str | None, *, strict: bool) -> int | None:
    """Check a descriptor and an invocation of it.

    A word with a slash, or that ends in .json, is a file. Any other is a pipeline of the catalogue, and a file where the catalogue has none of that name.
    Nothing is kept. What is wrong is named all at once, with its line and what to write instead; then the exit code is 2.
    What would be refused to run, or is better written otherwise, is advice.
    """
    from registry.descriptor import find_advice, find_repeated_advice, read_descriptor
    from registry.invocation import read_invocation
    from registry.problems import DescriptorError, InvocationError, Problem, read_file_bytes

    raw, file = _read(common, file)
    pipeline = read_descriptor(raw, file)
    advice = find_advice(raw, file)
    if strict and advice:
        raise DescriptorError(advice, about=file)
    answer_advice: list[Problem] = []
    if invocation is not None:
        answers = read_invocation(pipeline, Path(invocation))
        answer_advice = find_repeated_advice(read_file_bytes(Path(invocation)))
        answer_advice += [
            Problem(each, f"its default does not apply beside {other}", advice=True)
            for each, other in answers.withdrawn.items()
        ]
        if strict and answer_advice:
            raise InvocationError(answer_advice, reference=pipeline.reference, about=invocation)
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


def _read(common: Common, word: str) -> tuple[bytes, str]:
    """The bytes of the descriptor that is meant, and what to call it.

    Raises `NotFoundError` for what is neither a file nor in the catalogue.
    """
    from registry.catalogue import Catalogue
    from registry.problems import read_file_bytes

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
        common.output.warn(f"{pipeline.reference} of the catalogue is checked; the file is ./{word}")
    return pipeline.raw, pipeline.reference
