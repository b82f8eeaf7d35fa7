"""Name the tasks of a sweep by their values, so that a task has the same name in every run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hibali.documents import canonical_digest
from registry.parameters import Row

_PLAIN = re.compile(r"[A-Za-z0-9._+-]*")
_OTHER = re.compile(r"[^A-Za-z0-9._+-]+")
_LONGEST, _SHORTENED = 100, 60  # letters of a name; of one with a digest


def task_names(rows: Sequence[Row]) -> list[str]:
    """Return the name of each task, which is its folder among collected outputs.

    It is that of the row, such as `sub-01/ses-2`, or the values as `threshold=0.1,mode=fast`. Values that cannot be in a name are shortened and
    followed by `@` and a digest. Repetitions of the same values end with `@2`, `@3`.
    """
    names, repeated = [], Counter[str]()
    for row in rows:
        name = row.name or _name_of(row.values)
        repeated[name] += 1
        names.append(f"{name}@{repeated[name]}" if repeated[name] > 1 else name)
    return names


def _name_of(values: Mapping[str, Any]) -> str:
    texts = {each: _text(value) for each, value in values.items()}
    name = ",".join(f"{each}={text}" for each, text in texts.items()) or "task"
    if len(name) <= _LONGEST and all(_PLAIN.fullmatch(text) for text in texts.values()):
        return name
    short = (f"{each}={_OTHER.sub('-', text.rpartition('/')[2])}" for each, text in texts.items())
    return f"{','.join(short)[:_SHORTENED]}@{canonical_digest(dict(values))[:12]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
