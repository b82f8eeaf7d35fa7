#!/bin/sh
# Run tests in a copy of the tree without folders of hibali_plugins and their tests:
# `sh tests/without_plugins.sh [NAME...] [-- PYTEST ARGUMENTS]`, without NAME all folders.
set -eu
cd "$(dirname "$0")/.."
here=$PWD
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git ls-files --cached --others --exclude-standard | while IFS= read -r path; do
    [ ! -e "$path" ] || printf '%s\n' "$path"
done | tar -cf - -T - | tar -xf - -C "$tree"
ln -s "$here/.venv" "$here/.cache" "$tree"
cd "$tree"

[ "${1:---}" != -- ] || set -- $(cd hibali_plugins && for each in */; do printf '%s ' "${each%/}"; done) "$@"
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -d "hibali_plugins/$1" ] || { echo "no folder hibali_plugins/$1" >&2; exit 2; }
    rm -rf "hibali_plugins/$1" "tests/plugins/$1"
    shift
done
[ $# = 0 ] || shift
status=0
# The environment's own hibali is the tree with all folders.
PYTHONPATH=$tree .venv/bin/python -m pytest -q -p no:cacheprovider --continue-on-collection-errors "$@" </dev/null || status=$?
exit "$status"
