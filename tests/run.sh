#!/bin/sh
# Runs the tests in parallel, in memory where there is room: `sh tests/run.sh [PYTEST WORDS]`.
set -eu
cd "$(dirname "$0")/.."

# Thousands of processes start: each would compile all of hibali again.
unset PYTHONDONTWRITEBYTECODE

began=$(date +%s)
parts="packages environment swift crates torque snakemake parsl dask" # the last six are for tests marked heavy
for word in "$@"; do
    [ "$word" != "not heavy" ] || parts="packages environment"
done
# shellcheck disable=SC2086 - a list of words
sh tests/prepare.sh $parts
prepared=$(date +%s)
echo "set-up took $((prepared - began)) s"

# Tests wait for servers more than they compute.
workers=${WORKERS:-$(($(nproc) * 2))}
[ "$workers" -ge 2 ] || workers=2
[ "$workers" -le 4 ] || workers=4
memory=$(.venv/bin/python -c 'from tests.services.session import scratch_folder; print(scratch_folder())')
folder=$(mktemp -d "$memory/hibt-XXXXXX")

trap : INT # pytest ends its servers; we go on to the last lines
status=0
.venv/bin/python -m pytest -q -n "$workers" --dist worksteal --basetemp="$folder/t" "$@" </dev/null || status=$?
if [ "$status" = 1 ]; then
    status=0
    sh tests/second_try.sh "$folder/again" "$@" || status=$?
fi
echo "tests took $(($(date +%s) - prepared)) s (set-up before them: $((prepared - began)) s)"
if [ "$status" = 1 ] && [ -z "${CI:-}" ]; then
    echo "folders of the tests: $folder" >&2
else
    rm -rf "$folder"
fi
exit "$status"
