#!/bin/sh
# Rerun up to five failed tests sequentially and list those that pass: `sh tests/second_try.sh FOLDER [PYTEST ARGUMENTS]`.
# The reasons and limits of this are in docs/decisions/tests.md.
set -eu
cd "$(dirname "$0")/.."
folder=$1
shift

failed=$(.venv/bin/python -c '
import json, pathlib
seen = pathlib.Path(".pytest_cache/v/cache/lastfailed")
print("\n".join(json.loads(seen.read_text()) if seen.is_file() else []))
')
count=$(printf '%s\n' "$failed" | grep -c .) || true
if [ "$count" -lt 1 ] || [ "$count" -gt 5 ]; then
    exit 1
fi
printf 'Rerunning the failed tests one at a time:\n%s\n' "$failed"
status=0
.venv/bin/python -m pytest -q -n 0 --last-failed --last-failed-no-failures none --basetemp="$folder" "$@" </dev/null ||
    status=$?
if [ "$status" = 0 ]; then
    printf 'PASSED ONLY AT THE SECOND TRY, investigate these tests:\n%s\n' "$failed"
fi
exit "$status"
