"""Check in the job, after its tool ended with 0, that the tool left its required outputs; text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from runs.run import Output

FILE = "outputs.sh"
ID = re.compile(
    r"[A-Za-z0-9_,.-]{1,200}"
)  # more than the schema allows, and nothing that a shell or JSON reads
# A required output may be a symlink or unreadable: the tool left something, and collecting says what is wrong with it (S12).
# The list goes into the exit record, which is read up to a limit.
_HEAD = r"""
is_left() {
  for path do
    if [ -e "$path" ] || [ -L "$path" ]; then return 0; fi
  done
  return 1
}
note() { [ "${#missing}" -ge 4000 ] || missing="$missing${missing:+,}\"$1\""; }
"""
_TAIL = r"""
look
while [ -n "$missing" ] && [ "$seconds" -gt 0 ]; do
  sleep 1
  seconds=$((seconds-1))
  ls work >/dev/null 2>&1
  look
done
printf '%s' "$missing"
"""
_OTHER_NODES_SECONDS = 60  # a shared filesystem may show so late what another node of the job wrote


def required_script(outputs: Sequence[Output], *, several_nodes: bool = False) -> str:
    """Return the script that prints the ids of missing required outputs, quoted as JSON with commas; "" if all outputs are optional.

    The job's shell reads it in the folder of the run. A pattern is checked leniently: collecting is exact.
    """
    required = [each for each in outputs if not each.optional and ID.fullmatch(each.id)]
    if not required:
        return ""
    checks = [f"  is_left {_words(each)} || note {each.id}\n" for each in required]
    seconds = _OTHER_NODES_SECONDS if several_nodes else 0
    return f"seconds={seconds}{_HEAD}look() {{\n  missing=\n{''.join(checks)}}}{_TAIL}"


def _words(output: Output) -> str:
    """The path below the folder of the run as one shell word, with its wildcards active."""
    if not output.is_pattern:
        return shlex.quote(f"work/{output.path}")
    return "work/" + "".join(_piece(piece) for piece in re.split(r"([*?]|\[!?\]?[^]]*\])", output.path))


def _piece(piece: str) -> str:
    """Shells count characters and read `[...]` differently; at least one character is what they agree on."""
    if piece in {"", "*"}:
        return piece
    if piece == "?" or (piece.startswith("[") and piece.endswith("]") and len(piece) > 1):
        return "?*"
    return shlex.quote(piece)
