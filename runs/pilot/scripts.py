"""The scripts of a pilot: that of an allocation, and that of each task in it, which goes on as any task of a job array does."""

from __future__ import annotations

from collections.abc import Sequence

from runs.script import TURN, script_head

# A job that was put back into the queue goes on; another job of the same chunk has no turn.
_ALLOCATION = r"""
mask=$(umask)
umask 077
case "$PWD" in
  */"$run/chunks/$chunk") ;;
  *) cd -- "${PBS_O_WORKDIR:-${OAR_WORKDIR:-.}}" ;; # PBS begins in the home folder, OAR in what a start-up file left
esac
case "$PWD" in
  */"$run/chunks/$chunk") ;;
  *) echo "hibali: this is not the folder of allocation $chunk of run $run: $PWD" >&2; exit 75 ;;
esac
job=${1:-${SLURM_JOB_ID:-${OAR_JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-${JOB_ID:-}}}}}}
job=$(printf '%s' "$job" | tr -cd '][A-Za-z0-9._:+-')
if mkdir started 2>/dev/null; then
  printf '%s\n' "$job" >started/job.partial && mv started/job.partial started/job || exit 75
else
  first=
  read -r first <started/job
  if [ -z "$job" ] || [ "$job" != "$first" ]; then
    echo "hibali: allocation $chunk of run $run was started before, by job $first; this job does nothing" >&2
    exit 75
  fi
  printf '%s\n' "$job" >>again
fi
IFS= read -r python <../../pilot/python || exit 75
exec "$python" -I ../../pilot/program.py "$job" "$mask"
"""
# HyperQueue starts this in the folder of the task, with its number. It tells the pilot when it begins and when it is over,
# through a pipe that it opens for reading, too: with nobody there at the other end it would wait for ever. What HyperQueue tells its tasks,
# a key among it, is not for tools. Nothing begins any more where the allocation is to end, or another one has the turn.
_TASK = r"""
mask=${HIBALI_MASK:-022} job=${HIBALI_JOB:-} host=${HIBALI_HOST:-} told=${HIBALI_TOLD:-/dev/null} task=${1:-}
unset HIBALI_MASK HIBALI_JOB HIBALI_HOST HIBALI_TOLD
unset HQ HQ_ACCESS_KEY HQ_CPUS HQ_ENTRY HQ_ERROR_FILENAME HQ_INSTANCE_ID HQ_JOB_ID HQ_PIN HQ_RESOURCE_REQUEST_cpus HQ_RESOURCE_VALUES_cpus HQ_SERVER_DIR HQ_SUBMIT_DIR HQ_TASK_DIR HQ_TASK_ID
umask 077
case "$task" in ''|*[!0-9]*) exit 75 ;; esac
case "$PWD" in */"$run/tasks/$task") ;; *) exit 75 ;; esac
[ ! -e "../../chunks/$chunk/stop" ] && [ ! -e "../../chunks/$((chunk+1))" ] || exit 0
trap 'printf "e %s\n" "$task" 1<>"$told"; exit 0' EXIT
printf 'b %s %s\n' "$task" "$$" 1<>"$told"
run=$run/$task
runs=../../..
wish=../../cancel
"""


def allocation_script(run: str, chunk: int, directives: Sequence[str]) -> str:
    """The script that the scheduler starts in a chunk's folder (S9); `directives` are checked comment lines."""
    return f"{script_head(run, directives)}chunk={chunk:d}{_ALLOCATION}"


def task_script(run: str, chunk: int) -> str:
    """The script of each task of a chunk; see `runs.script.array_script`."""
    return f"{script_head(run, ())}chunk={chunk:d}{_TASK}{TURN}"
