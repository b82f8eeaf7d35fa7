#!/bin/sh
# Demonstrate hibali on this machine: two local sites, real MRI volumes, a real tool.
# Prints every hibali command before it runs. A second run transfers no file again.
set -eu
cd "$(dirname "$0")/.."

demo=$PWD/.demo
tools=$demo/tools
mkdir -p "$demo"

title() { printf '\n\033[1m%s\033[0m\n' "$1"; }

show() {
    printf '\n$'
    printf ' %s' "$@"
    printf '\n'
    "$@"
}

if [ ! -e "$tools/.ready" ] || [ demo/tools.txt -nt "$tools/.ready" ]; then
    echo "Creating a virtual environment for the tool (nibabel) ..."
    python3 -m venv --clear "$tools"
    "$tools/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-compile \
        --require-hashes -r demo/tools.txt
    touch "$tools/.ready"
fi

# The volumes are nibabel's test data.
if [ ! -d "$demo/volumes" ]; then
    mkdir -p "$demo/volumes.new"
    shipped=$("$tools/bin/python" -c 'import nibabel.tests, os; print(os.path.join(os.path.dirname(nibabel.tests.__file__), "data"))')
    for name in anatomical.nii functional.nii reoriented_anat_moved.nii resampled_anat_moved.nii standard.nii.gz example4d.nii.gz; do
        cp "$shipped/$name" "$demo/volumes.new/"
    done
    mv "$demo/volumes.new" "$demo/volumes"
fi

PATH=$PWD/.venv/bin:$PATH
HIBALI_CONFIG=$demo/config.toml
HIBALI_STATE=$demo/state
export PATH HIBALI_CONFIG HIBALI_STATE
mkdir -p "$demo/archive" "$demo/cluster"
cp demo/nib-conform.json "$demo/nib-conform.json"
cd "$demo"

title "1. Configure two sites: an archive for data and a cluster that runs tools (here both are local folders)"
show hibali sites add archive --local "$demo/archive"
# In a second run the cluster is already configured, including the line that is added below.
if ! hibali sites show cluster >/dev/null 2>&1; then
    show hibali sites add cluster --local "$demo/cluster" --work "$demo/cluster/work" --scheduler direct --container bare
    # Put the tool on PATH in the job script, as an environment module does at a real cluster.
    "$tools/bin/python" - config.toml "$tools/bin" <<'END'
import sys
path, folder = sys.argv[1:]
text = open(path).read()
marker = "[sites.cluster.scheduler]\n"
assert marker in text, text
line = "prologue = ['export PATH=\"%s:$PATH\"']   # at a real site: module load ...\n" % folder
open(path, "w").write(text.replace(marker, marker + line))
END
fi
show hibali sites list

title "2. Push the volumes to the archive; the checksum of every file is compared at both ends before it gets its final name"
show hibali push volumes archive:volumes
show hibali ls -l archive:volumes

title "3. Register a pipeline: a tool described in Boutiques JSON, stored under its name, version and digest"
show hibali pipelines add nib-conform.json
show hibali pipelines show nib-conform
show hibali pipelines trust nib-conform@5.4.2

title "4. Run it at the cluster, with an input from the archive"
cat >answers.json <<'END'
{"infile": "archive:volumes/anatomical.nii", "shape": [32, 32, 32], "voxel_size": [2, 2, 2], "orientation": "RAS"}
END
cat answers.json
run=$(hibali run nib-conform answers.json --site cluster --wait -q) || { status=$?; hibali runs list; exit "$status"; }
printf '\n$ hibali run nib-conform answers.json --site cluster --wait\n%s\n' "$run"
show hibali runs show "$run"
show hibali runs logs "$run"

title "5. Collect the outputs and verify them"
show hibali runs collect "$run" results
"$tools/bin/python" -c 'import nibabel; image = nibabel.load("results/conformed.nii.gz"); print("results/conformed.nii.gz", image.shape, nibabel.aff2axcodes(image.affine))'

title "6. Verify the archive: compare its checksums with the receipt, then with the source"
show hibali verify archive:volumes
show hibali verify volumes archive:volumes

title "Done. Run 'make demo' again: no file is transferred twice. All files are in .demo/."
