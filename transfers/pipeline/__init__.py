"""Carry file contents: batches, windows, channels, workers and receivers."""
