"""Read the section `tests` of a descriptor: invocations, and what they must produce (Boutiques schema, tests)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.errors import UsageError
from registry.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """An output that a test must create, and its MD5 in hexadecimal if the descriptor has it."""

    id: str
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class DescriptorTest:
    """A test of a descriptor; `exit_code` is None if any code will do."""

    name: str
    invocation: Mapping[str, Any]
    exit_code: int | None
    outputs: tuple[ExpectedOutput, ...]


def read_tests(pipeline: Pipeline, names: Sequence[str] = ()) -> list[DescriptorTest]:
    """Return the tests of a pipeline in their order, or those with these names.

    Raises:
        UsageError: The descriptor has no tests, or none with one of the names.
    """
    tests = [_read_test(each) for each in pipeline.document.get("tests", ())]
    if not tests:
        raise UsageError(
            "no-tests",
            "the descriptor has no tests",
            subject=pipeline.reference,
            hint=f"To run it with values of your own: hibali pipelines example {pipeline.reference}",
        )
    known = [each.name for each in tests]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            "no-such-test",
            f"the descriptor has no test {unknown[0]}; there are: {', '.join(known)}",
            subject=pipeline.reference,
        )
    return [each for each in tests if not names or each.name in names]


def _read_test(record: Mapping[str, Any]) -> DescriptorTest:
    assertions = record["assertions"]
    outputs = tuple(
        ExpectedOutput(each["id"], each.get("md5-reference")) for each in assertions.get("output-files", ())
    )
    return DescriptorTest(record["name"], record["invocation"], assertions.get("exit-code"), outputs)
