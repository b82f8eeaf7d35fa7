#!/bin/sh
# Test hibali against the Globus service with your account: docs/globus.md, "Testing with your account".
# CLIENT_ID: your native app. SOURCE and TARGET: COLLECTION:PATH, a small folder to read and a folder to write to.
# HTTPS=no: one collection has no HTTPS access (Globus Connect Personal); hibali does not verify the copy.
set -eu

usage() {
    echo "usage: make globus-smoke CLIENT_ID=UUID SOURCE=UUID:/a/small/folder TARGET=UUID:/~/ [HTTPS=no]" >&2
    exit 2
}
[ -n "${CLIENT_ID:-}" ] && [ -n "${SOURCE:-}" ] && [ -n "${TARGET:-}" ] || usage
case $SOURCE in *:/*) ;; *) usage ;; esac
case $TARGET in *:/*) ;; *) usage ;; esac

umask 077
https=true
checked="verify by digest"
[ "${HTTPS:-yes}" != no ] || https=false checked="(no verify)"
folder=$(mktemp -d)
step="writing its configuration"
made=""
logged_in=""
HIBALI_CONFIG=$folder/config.toml
HIBALI_STATE=$folder/state
export HIBALI_CONFIG HIBALI_STATE
python=${PYTHON:-.venv/bin/python}

hibali() {
    "$python" -m hibali_cli "$@"
}

remove() {
    FOLDER=$made "$python" -c '
import os
from globus_sdk import DeleteData
from hibali.config.settings import load_sites
from hibali_plugins.globus.errors import translated_errors
from hibali_plugins.globus.clients import open_access
from transfers.engine.collections import path_in_collection

site = load_sites().site("target")
folder = path_in_collection(site, os.environ["FOLDER"])
assert "hibali-smoke-" in folder.rpartition("/")[2]
with open_access([site]) as access, translated_errors(site):
    client = access.transfer()
    task = DeleteData(endpoint=site.globus.collection, label="hibali-smoke", recursive=True)
    task.add_item(folder)
    task_id = client.submit_delete(task)["task_id"]
    raise SystemExit(0 if client.task_wait(task_id, timeout=120) and client.get_task(task_id)["status"] == "SUCCEEDED" else 1)
'
}

end() {
    code=$?
    trap - EXIT
    [ -z "$made" ] || remove || echo "The folder $made could not be deleted at the target." >&2
    [ -z "$logged_in" ] || hibali sites logout target -q || echo "The login could not be revoked." >&2
    rm -rf "$folder"
    if [ "$code" -eq 0 ]; then
        echo "globus-smoke: login, mkdir, ls, transfer, second transfer with no files to move, $checked and delete work."
    else
        echo "globus-smoke failed while $step (exit $code)." >&2
    fi
    exit "$code"
}
trap end EXIT
trap 'exit 130' INT TERM

cat >"$HIBALI_CONFIG" <<CONFIG
version = 1
[globus]
client_id = "$CLIENT_ID"
[sites.source]
kind = "globus"
[sites.source.globus]
collection = "${SOURCE%%:*}"
https = $https
[sites.target]
kind = "globus"
[sites.target.globus]
collection = "${TARGET%%:*}"
https = $https
CONFIG
from=${SOURCE#*:}
into=${TARGET#*:}
case $into in /~/* | /~) into=${into#/} ;; esac
case $from in /~/* | /~) from=${from#/} ;; esac
new="${into%/}/hibali-smoke-$(date +%Y%m%d%H%M%S)-$$"

step="logging in for the source"
hibali sites login source
logged_in=1
step="logging in for the target"
hibali sites login target
step="creating the folder $new"
hibali mkdir "target:$new"
made=$new
step="listing it"
hibali ls "target:$new"
step="copying $from"
hibali sync "source:$from" "target:$new/copy"
step="copying it again"
again=$(hibali sync "source:$from" "target:$new/copy" --json | tail -n 1)
case $again in *'"files_moved":0,'*) ;; *) step="checking that the second copy moves no files: $again"; exit 6 ;; esac
step="verifying the copy"
[ "$https" = false ] || hibali verify "source:$from" "target:$new/copy"
step="cleaning up"
