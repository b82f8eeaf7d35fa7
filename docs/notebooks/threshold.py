"""Mark the voxels of an image above a level, and count them in each slice: `python3 threshold.py IMAGE LEVEL`."""

import csv
import sys
from pathlib import Path

import nibabel

image = nibabel.load(sys.argv[1])
mask = image.get_fdata() > float(sys.argv[2])
nibabel.save(nibabel.Nifti1Image(mask.astype("uint8"), image.affine), "mask.nii.gz")
with Path("slices.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["slice", "voxels"])
    table.writerows(enumerate(mask.sum(axis=(0, 1))))
