#!/bin/sh
# Run the tests in parallel, in memory if there is enough: `sh tests/run.sh [PYTEST ARGUMENTS]`.
# With UNTIL=SECONDS (since the epoch), no test starts after that time or later than 36 minutes from now: see tests/time_budget.py.
set -eu
cd "$(dirname "$0")/.."

# The tests start thousands of processes: without byte code, each compiles all of hibali again.
unset PYTHONDONTWRITEBYTECODE

began=$(date +%s)
parts="packages environment swift crates axe torque snakemake parsl dask radical frameworks science bids globus rest cwl psij nipoppy podman-hpc delivery fsspec docs" # the last twenty are for the tests marked heavy
for word in "$@"; do
    [ "$word" != "not heavy" ] || parts="packages environment"
done
# shellcheck disable=SC2086 - split into arguments
sh tests/prepare.sh $parts
prepared=$(date +%s)
echo "Setup took $((prepared - began)) s"

# Four workers use two cores fully; each worker imports all tests, and more of them took longer.
workers=${WORKERS:-4}
memory=$(.venv/bin/python -c 'from tests.services.session import scratch_folder; print(scratch_folder())')
folder=$(mktemp -d "$memory/hibt-XXXXXX")

if [ -n "${UNTIL:-}" ]; then
    longest=$((prepared + 36 * 60))
    HIBALI_TESTS_UNTIL=$((UNTIL < longest ? UNTIL : longest))
    HIBALI_TESTS_ORDER=$(git rev-parse HEAD)
    export HIBALI_TESTS_UNTIL HIBALI_TESTS_ORDER
fi

# Each worker imports all tests. Compile them once, with two processes, instead of once in each worker at the same time.
case "$*" in
*tests/*) ;;
*)
    for tests in "tests/end_to_end tests/services" "tests/unit tests/contracts tests/properties tests/plugins"; do
        # shellcheck disable=SC2086 - split into arguments
        .venv/bin/python -m pytest -q --collect-only -p no:cacheprovider $tests </dev/null >/dev/null 2>&1 &
    done
    wait
    echo "Compiling the tests took $(($(date +%s) - prepared)) s"
    ;;
esac

trap : INT # pytest stops its servers; then print the summary below
status=0
.venv/bin/python -m pytest -q -n "$workers" --dist worksteal --basetemp="$folder/t" "$@" </dev/null || status=$?
if [ "$status" = 1 ]; then
    status=0
    unset HIBALI_TESTS_UNTIL
    sh tests/second_try.sh "$folder/again" "$@" || status=$?
fi
echo "Tests took $(($(date +%s) - prepared)) s (after $((prepared - began)) s of setup)"
if [ "$status" = 1 ] && [ -z "${CI:-}" ]; then
    echo "The tests' temporary folders are in $folder" >&2
else
    rm -rf "$folder"
fi
exit "$status"
