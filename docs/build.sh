#!/bin/sh
# Builds the documentation's pages: `sh docs/build.sh` writes build/docs/html; a warning is an error.
# With names of commands, the page of what every command says has only these, and takes a minute instead of several.
set -eu
cd "$(dirname "$0")/.."
sh tests/prepare.sh docs

source=build/docs/source
rm -rf build/docs
mkdir -p "$source"
cp -R docs/. "$source"
.venv/bin/python -m docs.tools.generate --pages "$source/commands"
.venv/bin/python -m docs.tools.transcript "$source/commands/transcript.md" "$@"
.cache/docs/bin/python -m sphinx -q -W --keep-going -n -b html "$source" build/docs/html
echo "build/docs/html/index.html"
