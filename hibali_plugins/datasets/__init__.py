"""Datasets of git-annex and DataLad: their files as plain ones, commits, records of runs, checks, a special remote."""
