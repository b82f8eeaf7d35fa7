"""What a job looks after itself before its tool starts: that the runs it needs succeeded and left what it takes; text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

# Not every scheduler looks at how a job ended that another one waits for, and none at what it left. A tool's
# output that is a symlink could lead to anything that this account can read (S12): it is not followed, nor is one on the way.
_CHECKS = r"""
hibali_unmet() {
  printf '%s\n' "$1" >"$hibali_folder/unmet"
  printf 'hibali: %s\n' "$1" >&2
  exit 75
}
hibali_succeeded() {
  hibali_tries=0
  while [ ! -e "$2/exit.json" ] && [ "$hibali_tries" -lt 20 ]; do
    sleep 1
    hibali_tries=$((hibali_tries + 1))
  done
  grep -q '"code":0,"signal":""' "$2/exit.json" 2>/dev/null ||
    hibali_unmet "run $1 did not succeed"
}
hibali_left() {
  hibali_at=$2/work
  hibali_rest=$3/
  [ "$3" != . ] || hibali_rest=
  while [ -n "$hibali_rest" ]; do
    hibali_at=$hibali_at/${hibali_rest%%/*}
    hibali_rest=${hibali_rest#*/}
    [ ! -L "$hibali_at" ] || hibali_unmet "run $1 left a symlink, which is not followed: $3"
  done
  if [ -d "$hibali_at" ]; then
    hibali_odd=$(find "$hibali_at" ! -type f ! -type d -print) ||
      hibali_unmet "run $1 left a folder that cannot be read whole: $3"
    [ -z "$hibali_odd" ] || hibali_unmet "run $1 left a folder with symlinks or special files: $3"
  elif [ -e "$hibali_at" ]; then
    [ -f "$hibali_at" ] || hibali_unmet "run $1 left a special file: $3"
  else
    hibali_unmet "run $1 did not leave it: $3"
  fi
}
"""


@dataclass(frozen=True, slots=True)
class Need:
    """A run of the same site, or with a number a task of a sweep, that has to have succeeded: its folder, and what is taken of its work folder.

    Each of `paths` is relative to the work folder; without any it only comes first. Of `all_tasks` of a sweep every one has to have
    succeeded, and the folder is that of the run.
    """

    run: str
    folder: str
    paths: tuple[str, ...] = ()
    task: int = 0
    all_tasks: bool = False

    @property
    def word(self) -> str:
        """How it is called in a reference."""
        return f"{self.run}.{self.task}" if self.task else self.run


def guard_lines(folder: str, needs: Sequence[Need]) -> str:
    """Shell lines for `start` of the run whose folder this is; "" where there is nothing to look after.

    Where something is wrong they say so in `FOLDER/unmet` and end with 75 (`runs.script.EXIT_NOT_RUN`), the tool unstarted.
    """
    if not needs:
        return ""
    lines = [f"hibali_folder={shlex.quote(folder)}{_CHECKS}"]
    for need in needs:
        of = f"{shlex.quote(need.word)} {shlex.quote(need.folder)}"
        if need.all_tasks:
            every = f'hibali_succeeded {shlex.quote(need.run)}."${{hibali_task##*/}}" "$hibali_task"'
            lines.append(f"for hibali_task in {shlex.quote(need.folder)}/tasks/*; do {every}; done\n")
            continue
        lines.append(f"hibali_succeeded {of}\n")
        lines += [f"hibali_left {of} {shlex.quote(path)}\n" for path in need.paths]
    return "".join(lines)
