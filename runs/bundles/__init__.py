"""The unit that travels: a pipeline, its answers and what a run of them left, in one archive."""
