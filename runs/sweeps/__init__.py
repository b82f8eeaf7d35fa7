"""Sweeps: runs of one pipeline with many sets of input values."""
