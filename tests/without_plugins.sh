#!/bin/sh
# Run tests in a copy of the tree without folders of hibali_plugins and their tests:
# `sh tests/without_plugins.sh [NAME...] [-- PYTEST ARGUMENTS]`, without NAME all folders.
# `sh tests/without_plugins.sh --each [NAME...] [-- PYTEST ARGUMENTS]` removes one folder after the other, without NAME each, and
# runs the tests of the core that show what folders add, and those of the parts that the folder extends: a minute or two each.
set -eu
cd "$(dirname "$0")/.."
here=$PWD

folders() {
    for each in hibali_plugins/*/entry_points.txt; do
        [ ! -e "$each" ] || basename "$(dirname "$each")"
    done
}

# Print the tests of the core that a folder can change.
tests_for() {
    echo tests/unit/hibali/config tests/unit/hibali/test_plugins.py tests/unit/hibali_api tests/unit/hibali_cli
    echo tests/unit/test_hints.py
    for each in cli_common cli_generated completion documentation; do
        echo "tests/end_to_end/test_$each.py"
    done
    case $1 in
    centres) echo tests/plugins/setup/test_sites_import.py ;;
    site_containers) echo tests/contracts/test_container.py tests/unit/runs ;;
    batch_systems) echo tests/contracts/test_scheduler.py tests/unit/runs ;;
    bundles | eviction | notebooks | participants | pilots)
        echo tests/unit/runs tests/end_to_end/test_sweep_direct.py
        ;;
    cbrain | ebrains | facilities | fsspec_sites | globus | gridftp | web)
        echo tests/contracts/test_store_exact.py tests/contracts/test_job_service.py
        echo tests/unit/transfers/engine tests/end_to_end/test_cli_sites.py tests/end_to_end/test_plugin.py
        ;;
    datasets)
        echo tests/unit/transfers/engine tests/unit/registry/images
        echo tests/end_to_end/test_stage.py tests/end_to_end/test_hostile_runs.py
        ;;
    authoring | exchange | formats) echo tests/contracts/test_corpus.py tests/unit/registry ;;
    follow | nodes | packs)
        echo tests/unit/transfers/engine tests/unit/transfers/planning tests/end_to_end/test_overlap.py
        echo tests/end_to_end/test_push_plan.py tests/end_to_end/test_missing_roots.py
        ;;
    setup)
        echo tests/unit/runs tests/end_to_end/test_missing_roots.py tests/end_to_end/test_batch_systems.py
        echo tests/end_to_end/test_one_session.py tests/end_to_end/test_refused_sessions.py tests/end_to_end/test_machine_faults.py
        ;;
    filesystem | history | reports | schedules | share | status)
        echo tests/end_to_end/test_unreadable_state.py tests/unit/runs/test_present.py
        echo tests/end_to_end/test_shared_folders.py tests/end_to_end/test_machine_faults.py
        echo tests/end_to_end/test_python_api.py
        ;;
    esac
}

if [ "${1:-}" = --each ]; then
    shift
    names=""
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        names="$names $1"
        shift
    done
    [ $# = 0 ] || shift
    failed=""
    for name in ${names:-$(folders)}; do
        echo "Without $name"
        # shellcheck disable=SC2046 - split into arguments
        sh tests/without_plugins.sh "$name" -- $(tests_for "$name") -m "not heavy" "$@" || failed="$failed $name"
    done
    [ -z "$failed" ] || { echo "Tests of the core fail without:$failed" >&2; exit 1; }
    exit 0
fi

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git ls-files --cached --others --exclude-standard | while IFS= read -r path; do
    [ ! -e "$path" ] || printf '%s\n' "$path"
done | tar -cf - -T - | tar -xf - -C "$tree"
ln -s "$here/.venv" "$here/.cache" "$tree"
cd "$tree"

# shellcheck disable=SC2046 - split into arguments
[ "${1:---}" != -- ] || set -- $(folders) "$@"
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -d "hibali_plugins/$1" ] || { echo "no folder hibali_plugins/$1" >&2; exit 2; }
    rm -rf "hibali_plugins/$1" "tests/plugins/$1"
    shift
done
# Without a folder that it requires, a folder counts as removed.
for name in $(folders); do
    for needed in $(sed -n '/^\[hibali.requires\]/,/^$/s/ = .*//p' "hibali_plugins/$name/entry_points.txt"); do
        [ -d "hibali_plugins/$needed" ] || rm -rf "hibali_plugins/$name" "tests/plugins/$name"
    done
done
[ $# = 0 ] || shift
status=0
# The environment's own hibali is the tree with all folders.
PYTHONPATH=$tree HIBALI_CORPUS=${HIBALI_CORPUS:-$here/../shared/corpus} .venv/bin/python -m pytest -q -p no:cacheprovider --continue-on-collection-errors "$@" </dev/null || status=$?
exit "$status"
