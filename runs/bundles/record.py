"""Read and write bundle.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from hibali.documents import canonical_json, read_json
from hibali.errors import UsageError

if TYPE_CHECKING:
    import jsonschema

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}


def _object(needed: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**needed, **(more or {})}, "required": list(needed)}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "null"}, schema]}


_INPUT = {
    "id": _TEXT,
    "member": _TEXT,
    "type": {"enum": ["file", "folder"]},
    "files": _COUNT,
    "bytes": _COUNT,
    "included": {"type": "boolean"},
}
_RUN = dict.fromkeys(("id", "site", "scheduler", "container", "state"), _TEXT)
_RUN_MORE: dict[str, Any] = {
    **dict.fromkeys(("reason", "host", "created", "started", "ended"), _TEXT),
    # it is handed on as `--image`, where anything else would be the name of a file
    "image": {"type": "string", "pattern": r"^(sha256:[0-9a-f]{64})?\Z"},
}
_PROBLEM = _object({"path": _TEXT, "code": _TEXT, "message": _TEXT})
_SCHEMA = _object(
    {
        "schema": {"const": 1},
        "kind": {"const": "bundle"},
        "hibali": _TEXT,
        "pipeline": _object(
            {"name": _TEXT, "version": _TEXT, "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
        ),
        "inputs": {"type": "array", "items": _object(_INPUT, {"location": _TEXT})},
        "run": _or_null(_object(_RUN, {**_RUN_MORE, "exit_code": _or_null({"type": "integer"})})),
        "outputs": _or_null(
            _object({"files": _COUNT, "bytes": _COUNT}, {"problems": {"type": "array", "items": _PROBLEM}})
        ),
    }
)
_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True)
class PackedInput:
    """One input of the invocation: `member` is its name in the bundle, and in inputs.sha256 where it is not `included`.

    `type` is `file` or `folder`. `location` is where one that is not included lay, else "".
    """

    id: str
    member: str
    type: str
    files: int
    bytes: int
    included: bool
    location: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """How the run went that a bundle is of. Times are RFC 3339, "" where unknown; `image` is `sha256:ID` or ""."""

    id: str
    site: str
    scheduler: str
    container: str
    state: str
    reason: str = ""
    host: str = ""
    image: str = ""
    exit_code: int | None = None
    created: str = ""
    started: str = ""
    ended: str = ""


@dataclass(frozen=True, slots=True)
class LeftFacts:
    """What the run left: how much, and each of `problems` as `path`, `code` and `message` of what should have been there."""

    files: int
    bytes: int
    problems: Sequence[Mapping[str, str]] = field(default=())


@dataclass(frozen=True, slots=True)
class Record:
    """All of bundle.json. `name` and `version` are the catalogue's. Without a run nothing was left."""

    hibali: str
    name: str
    version: str
    digest: str
    inputs: tuple[PackedInput, ...]
    run: RunFacts | None = None
    outputs: LeftFacts | None = None

    def to_fields(self) -> dict[str, Any]:
        """As JSON, without `schema` and `kind`."""
        return {
            "hibali": self.hibali,
            "pipeline": {"name": self.name, "version": self.version, "digest": self.digest},
            "inputs": [asdict(each) for each in self.inputs],
            "run": None if self.run is None else asdict(self.run),
            "outputs": None
            if self.outputs is None
            else {**asdict(self.outputs), "problems": [dict(each) for each in self.outputs.problems]},
        }


def write_record(record: Record) -> bytes:
    """The one way to write it: canonical JSON (RFC 8785) and a newline."""
    return canonical_json({"schema": 1, "kind": "bundle", **record.to_fields()}) + b"\n"


def read_record(raw: bytes, subject: str) -> Record:
    """The record in bytes nobody vouches for; raises `UsageError`."""
    found = read_json(raw, subject)
    problem = next(_validator().iter_errors(found), None)
    if problem is not None:
        raise UsageError("bad-record", f"{problem.json_path}: {problem.message[:200]}", subject=subject)
    return Record(
        hibali=found["hibali"],
        name=found["pipeline"]["name"],
        version=found["pipeline"]["version"],
        digest=found["pipeline"]["digest"],
        inputs=tuple(_take(PackedInput, each) for each in found["inputs"]),
        run=None if found["run"] is None else _take(RunFacts, found["run"]),
        outputs=None if found["outputs"] is None else _take(LeftFacts, found["outputs"]),
    )


def _take(kind: type[_Facts], found: Mapping[str, Any]) -> _Facts:
    """What is known of these facts; later versions may say more."""
    return kind(**{name: found[name] for name in kind.__slots__ if name in found})  # type: ignore[attr-defined]


@cache
def _validator() -> jsonschema.Draft202012Validator:
    import jsonschema

    return jsonschema.Draft202012Validator(_SCHEMA)
