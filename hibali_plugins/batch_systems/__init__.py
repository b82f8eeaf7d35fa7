"""Batch systems beside Slurm: LSF, OAR, PBS and SGE."""
