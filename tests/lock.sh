#!/bin/sh
# Renews requirements.lock from what pyproject.toml asks for, in a clean environment.
set -eu
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" - >"$folder/wanted" <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    asked = tomllib.load(file)
lists = [asked["project"]["dependencies"], asked["build-system"]["requires"], ["editables"]]
print(*(line for wanted in (*lists, *asked["dependency-groups"].values()) for line in wanted), sep="\n")
PYTHON
"$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check --requirement "$folder/wanted"
{
    echo "# What is tested: every package of hibali, of its tests, checks and demo, at one version each."
    echo "# Renew with \`make lock\`: a clean environment from pyproject.toml, then pip freeze."
    "$folder/venv/bin/python" -m pip freeze | sort -f
} >"$folder/lock"
mv "$folder/lock" requirements.lock
