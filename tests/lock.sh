#!/bin/sh
# Update lock files, with the hashes of all files of each package: `sh tests/lock.sh [--keep] [NAME...]`.
# `requirements` (the default) is requirements.lock, from the dependencies in pyproject.toml; another NAME is tests/NAME.lock, `tools` is
# demo/tools.txt and `peers` is benchmarks/peers.txt, each from its line "# from:". With --keep the versions do not change.
set -eu
cd "$(dirname "$0")/.."

sh tests/prepare.sh delivery # uv, at the version of tests/delivery.lock
uv=.cache/delivery/bin/uv
[ -x "$uv" ] || exit 1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

wanted_by_project() {
    "${PYTHON:-python3}" - <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
lists = [project["project"]["dependencies"], project["build-system"]["requires"], ["editables"]]
print(*(line for wanted in (*lists, *project["dependency-groups"].values()) for line in wanted), sep="\n")
PYTHON
}

# Resolve for the Python of Debian 12, the oldest tested version.
renew() {
    case $1 in
    requirements) lock=requirements.lock ;;
    tools) lock=demo/tools.txt ;;
    peers) lock=benchmarks/peers.txt ;;
    *) lock=tests/$1.lock ;;
    esac
    options="--python ${PYTHON:-python3} --python-version 3.11.2"
    if [ -n "$keep" ]; then
        options="$options --no-deps"
        sed -n 's/^\([^# ][^ ]*\).*/\1/p' "$lock" >"$folder/wanted"
    elif [ "$1" = requirements ]; then
        wanted_by_project >"$folder/wanted"
    else
        sed -n 's/^# from: //p' "$lock" | tr ' ' '\n' >"$folder/wanted"
        if grep -q '^# without what they need$' "$lock"; then options="$options --no-deps"; fi
    fi
    grep -q . "$folder/wanted" || { echo "$lock has no requirements: add a line '# from: NAME...'" >&2 && exit 1; }
    # shellcheck disable=SC2086 - split into arguments
    "$uv" pip compile --quiet --no-config --no-header --no-annotate --generate-hashes $options "$folder/wanted" >"$folder/locked"
    { sed -n '/^#/p' "$lock" && cat "$folder/locked"; } >"$folder/new"
    mv "$folder/new" "$lock"
}

keep=
if [ "${1:-}" = --keep ]; then
    keep=yes
    shift
fi
[ $# -gt 0 ] || set -- requirements
for name in "$@"; do
    renew "$name"
done
