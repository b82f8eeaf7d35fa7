"""Make a BIDS dataset as studies have it: sessions, tasks and runs, metadata on three levels, derivatives, and files that BIDS ignores."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

SUBJECTS = {"01": ("a", "b"), "02": ("a",), "03": ("a",)}
UPPER = {
    "README.md": "# Study\nA dataset that a test made, with enough words that no reader takes it for an empty one. "
    * 3,
    "CHANGES": "1.0.0 2026-01-01\n  - First version.\n",
    "participants.tsv": "participant_id\tage\tsex\nsub-01\t34\tF\nsub-02\t12\tM\nsub-03\t56\tO\n",
    "participants.json": json.dumps({"age": {"Description": "Age", "Units": "year"}}),
    "T1w.json": json.dumps({"Manufacturer": "Maker"}),
    "task-rest_bold.json": json.dumps({"TaskName": "rest", "RepetitionTime": 2.0}),
    "task-nback_bold.json": json.dumps({"TaskName": "nback", "RepetitionTime": 1.5}),
    "task-nback_events.json": json.dumps({"trial_type": {"Description": "Kind of trial"}}),
    "dwi.bval": "0 1000\n",
    "dwi.bvec": "0 1\n0 0\n0 0\n",
    ".bidsignore": "extra\n*_raw.txt\n",
    "stimuli/face.png": "not really a picture",
    "phenotype/test.tsv": "participant_id\tscore\nsub-01\t1\nsub-02\t2\nsub-03\t3\n",
    "sourcedata/sub-01/x.dcm": "dicom",
    "code/convert.py": "pass\n",
    "extra/notes.txt": "ignored",
}


def nifti(*shape: int, seconds: float = 0) -> bytes:
    """Return a NIfTI-1 file of zeros, compressed."""
    dimensions = [len(shape), *shape, *[1] * (7 - len(shape))]
    steps = [1.0, 2.0, 2.0, 2.0, seconds, 0.0, 0.0, 0.0]
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, *dimensions)
    struct.pack_into("<2h", header, 70, 2, 8)
    struct.pack_into("<8f", header, 76, *steps)
    struct.pack_into("<f", header, 108, 352.0)
    header[123] = 10  # millimetres and seconds
    header[344:348] = b"n+1\0"
    count = 1
    for size in shape:
        count *= size
    return gzip.compress(bytes(header) + bytes(count), mtime=0)


def describe(folder: Path, **fields: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"Name": "Study", "BIDSVersion": "1.10.0", "License": "CC0", "Authors": ["A", "B"], **fields}
    (folder / "dataset_description.json").write_text(json.dumps(document))


def make_dataset(root: Path) -> Path:
    """Make the dataset: participant 03 has no nback and no diffusion, so that their metadata on the levels above do not apply to it."""
    describe(root, DatasetType="raw", DatasetLinks={"prepared": "derivatives/prepared"})
    for path, text in UPPER.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for subject, sessions in SUBJECTS.items():
        top = root / f"sub-{subject}"
        for session in sessions:
            stem = f"sub-{subject}_ses-{session}"
            files = {f"anat/{stem}_T1w.nii.gz": nifti(4, 4, 4), f"anat/{stem}_raw.txt": b"ignored"}
            for run in ("1", "2"):
                files[f"func/{stem}_task-rest_run-{run}_bold.nii.gz"] = nifti(4, 4, 4, 3, seconds=2.0)
            if subject != "03":
                files[f"func/{stem}_task-nback_bold.nii.gz"] = nifti(4, 4, 4, 3, seconds=1.5)
                events = b"onset\tduration\ttrial_type\tstim_file\n0.0\t1.0\tone\tface.png\n"
                files[f"func/{stem}_task-nback_events.tsv"] = events
                files[f"dwi/{stem}_dwi.nii.gz"] = nifti(4, 4, 4, 2, seconds=5.0)
            for path, content in files.items():
                (top / f"ses-{session}" / path).parent.mkdir(parents=True, exist_ok=True)
                (top / f"ses-{session}" / path).write_bytes(content)
            name = f"ses-{session}/{stem}_task-rest_bold.json"
            (top / name).write_text(json.dumps({"EchoTime": 0.03}))
        (top / f"sub-{subject}_task-rest_bold.json").write_text(json.dumps({"FlipAngle": 90}))
        rows = "".join(f"ses-{each}\t2026-01-01T12:00:00\n" for each in sessions)
        (top / f"sub-{subject}_sessions.tsv").write_text(f"session_id\tacq_time\n{rows}")
    make_derivatives(root / "derivatives" / "prepared", ["01", "02"])
    return root


def make_derivatives(root: Path, subjects: list[str]) -> Path:
    """Make derivatives as fMRIPrep leaves them: its .bidsignore names files that later tools need."""
    describe(
        root, Name="Prepared", DatasetType="derivative", GeneratedBy=[{"Name": "prepare", "Version": "1.0"}]
    )
    (root / ".bidsignore").write_text("*.html\n*_xfm.*\nlogs/\n")
    (root / "desc-brain_T1w.json").write_text(json.dumps({"SkullStripped": True}))
    for subject in subjects:
        anat = root / f"sub-{subject}" / "anat"
        anat.mkdir(parents=True)
        (root / f"sub-{subject}.html").write_text("report")
        (anat / f"sub-{subject}_desc-brain_T1w.nii.gz").write_bytes(nifti(4, 4, 4))
        (anat / f"sub-{subject}_from-T1w_to-MNI_mode-image_xfm.h5").write_bytes(b"transform")
    return root
