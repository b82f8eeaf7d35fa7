"""Bundles: a pipeline, its answers and the outputs' digests of a run, in one archive."""
