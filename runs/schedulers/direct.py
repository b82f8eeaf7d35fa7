"""No scheduler: a process at the site in a session of its own, which survives our leaving.

A job's id is PID:STARTTICKS:BOOT:HOST, where STARTTICKS is field 22 of /proc/PID/stat (proc(5)) and BOOT the
head of the boot id, so that neither a reused pid nor a reboot nor another login node is taken for the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from hibali.errors import TryLaterError, UsageError
from hibali.text import printable
from runs.scheduler import (
    GONE,
    Answer,
    Job,
    NotSubmitted,
    Phase,
    Resources,
    Status,
    Submitted,
    Unclear,
    check_job_id,
)
from transfers.far import Finished

# Words come in as arguments and are never read as shell text. The inner shell tells its own id before it
# becomes the job, so that the outer one can wait for exactly that and leave.
_HERE = r"""
boot=$(head -c 8 /proc/sys/kernel/random/boot_id 2>/dev/null)
host=$(uname -n | tr -cd 'A-Za-z0-9._-')
"""
_LAUNCH = (
    _HERE
    + r"""
cd -- "$1" || exit 65
exec 2>&1
job=$(setsid /bin/sh -c '
read -r stat </proc/$$/stat || exit 66
set -f; set -- ${stat##*) }
id="$$:${20}:$0"
printf "%s\n" "$id"
exec /bin/sh ./job.sh "$id" </dev/null >>scheduler.log 2>&1
' "$boot:$host" </dev/null 2>>scheduler.log &)
[ -n "$job" ] || { echo "the process did not start"; exit 67; }
printf '%s\n' "$job"
"""
)
_STATUS = (
    _HERE
    + r"""
for id; do
  pid=${id%%:*}; rest=${id#*:}; ticks=${rest%%:*}; rest=${rest#*:}
  if [ "${rest#*:}" != "$host" ]; then echo "$id elsewhere"; continue; fi
  word=gone
  if [ "${rest%%:*}" = "$boot" ] && read -r stat 2>/dev/null </proc/"$pid"/stat; then
    set -f; set -- ${stat##*) }
    if [ "${20}" = "$ticks" ]; then case $1 in Z|X|x) ;; *) word=running;; esac; fi
  fi
  echo "$id $word"
done
"""
)
# The job leads its session and process group, so the group's number is the pid.
_CANCEL = (
    _HERE
    + r"""
pid=${1%%:*}; rest=${1#*:}; ticks=${rest%%:*}; rest=${rest#*:}
if [ "${rest#*:}" != "$host" ]; then echo "the job runs on ${rest#*:}, this is $host" >&2; exit 69; fi
same() {
  [ "${rest%%:*}" = "$boot" ] && read -r stat 2>/dev/null </proc/"$pid"/stat || return 1
  set -f; set -- ${stat##*) }; [ "${20}" = "$ticks" ] && [ "$1" != Z ]
}
same || exit 0
kill -TERM -"$pid" 2>/dev/null
n=0
while same && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done
same && kill -KILL -"$pid" 2>/dev/null
exit 0
"""
)


class Direct:
    """A process instead of a job: nothing queues, nothing is accounted, no limit is enforced."""

    name = "direct"

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """None: there is nobody to read them."""
        del resources
        return ()

    def submit_words(self, job: Job) -> tuple[str, ...]:
        """A constant script, and the run's folder as its argument."""
        if job.tasks or job.after or job.hold:
            raise UsageError(
                "no-such-scheduling",
                "a site without a scheduler has no job arrays, no jobs that wait for others, and none on hold",
                about=job.name,
                hint="Choose a site with a scheduler, or set its [scheduler] name.",
            )
        return ("/bin/sh", "-c", _LAUNCH, job.name, job.script.rpartition("/")[0])

    def read_submit(self, finished: Finished) -> Answer:
        """The launcher's last word is the job's id."""
        words = finished.stdout.decode("ascii", "replace").split()
        job = check_job_id(words[-1]) if words else None
        if finished.exit_code == 0 and job is not None and job.count(":") == 3:
            return Submitted(job)
        said = printable((finished.stdout + finished.stderr).strip()[-500:])
        if finished.exit_code in {65, 66, 67, 127}:
            return NotSubmitted(
                UsageError(
                    "no-start",
                    f"the process could not be started at the site: {said}",
                    hint="`direct` needs a Linux site with /bin/sh, setsid and /proc.",
                )
            )
        return Unclear(said or f"the launcher ended with {finished.exit_code}")

    def status_words(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """One shell looks at all of them."""
        return ("/bin/sh", "-c", _STATUS, "hibali", *jobs)

    def read_status(self, finished: Finished, jobs: Sequence[str]) -> Mapping[str, Status]:
        """A process that is not there is GONE: its exit record tells how it went."""
        if finished.exit_code != 0:
            raise TryLaterError(
                "scheduler-silent",
                f"the site did not list its processes: {printable(finished.stderr[-500:])}",
            )
        words = {
            "running": Status(Phase.RUNNING, "running"),
            "elsewhere": Status(
                Phase.ELSEWHERE, "elsewhere", "the run was started on another host of the site"
            ),
        }
        found = dict.fromkeys(jobs, GONE)
        for line in finished.stdout.decode("ascii", "replace").splitlines():
            job, _, word = line.partition(" ")
            if job in found:
                found[job] = words.get(word, GONE)
        return found

    def read_tasks(self, finished: Finished, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """No job here is an array."""
        del finished
        return {job: {} for job in jobs}

    def start_words(self) -> tuple[str, ...]:
        """Nothing waits."""
        return ()

    def read_start(self, finished: Finished, now: datetime) -> float | None:
        """Never asked."""
        del finished, now
        return 0.0

    def lookup_words(self, name: str) -> tuple[str, ...]:
        """Nobody to ask: what the job wrote into `started` is all there is."""
        del name
        return ()

    def read_lookup(self, finished: Finished, user: str) -> str | None:
        """Never asked."""
        del finished, user
        return None

    def accounting_words(self, jobs: Sequence[str], run: str, since: str) -> tuple[str, ...]:
        """Nobody keeps accounts."""
        del jobs, run, since
        return ()

    def read_accounting(self, finished: Finished) -> Mapping[str, Status] | None:
        """Never asked."""
        del finished
        return None

    def cancel_words(self, job: str) -> tuple[str, ...]:
        """TERM to its process group, and KILL after five seconds."""
        return ("/bin/sh", "-c", _CANCEL, "hibali", job)

    def release_words(self, job: str) -> tuple[str, ...]:
        """Never asked."""
        del job
        return ()


SCHEDULER = Direct()
