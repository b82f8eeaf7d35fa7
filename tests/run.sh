#!/bin/sh
# Runs the tests in parallel, in memory where there is room: `sh tests/run.sh [PYTEST WORDS]`.
# With UNTIL=SECONDS (since the epoch) none begins later, nor later than 36 minutes from now: see tests/time_budget.py.
set -eu
cd "$(dirname "$0")/.."

# Thousands of processes start: each would compile all of hibali again.
unset PYTHONDONTWRITEBYTECODE

began=$(date +%s)
parts="packages environment swift crates axe torque snakemake parsl dask globus delivery docs" # the last ten are for tests marked heavy
each=2
for word in "$@"; do
    [ "$word" != "not heavy" ] || { parts="packages environment" && each=3; }
done
# shellcheck disable=SC2086 - a list of words
sh tests/prepare.sh $parts
prepared=$(date +%s)
echo "set-up took $((prepared - began)) s"

# Tests wait for servers more than they compute, the heavy ones less so.
workers=${WORKERS:-$(($(nproc) * each))}
[ "$workers" -ge 2 ] || workers=2
[ "$workers" -le $((each * 2)) ] || workers=$((each * 2))
memory=$(.venv/bin/python -c 'from tests.services.session import scratch_folder; print(scratch_folder())')
folder=$(mktemp -d "$memory/hibt-XXXXXX")

if [ -n "${UNTIL:-}" ]; then
    longest=$((prepared + 36 * 60))
    HIBALI_TESTS_UNTIL=$((UNTIL < longest ? UNTIL : longest))
    HIBALI_TESTS_ORDER=$(git rev-parse HEAD)
    export HIBALI_TESTS_UNTIL HIBALI_TESTS_ORDER
fi

trap : INT # pytest ends its servers; we go on to the last lines
status=0
.venv/bin/python -m pytest -q -n "$workers" --dist worksteal --basetemp="$folder/t" "$@" </dev/null || status=$?
if [ "$status" = 1 ]; then
    status=0
    unset HIBALI_TESTS_UNTIL
    sh tests/second_try.sh "$folder/again" "$@" || status=$?
fi
echo "tests took $(($(date +%s) - prepared)) s (set-up before them: $((prepared - began)) s)"
if [ "$status" = 1 ] && [ -z "${CI:-}" ]; then
    echo "folders of the tests: $folder" >&2
else
    rm -rf "$folder"
fi
exit "$status"
