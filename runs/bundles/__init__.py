"""Bundles: a pipeline, its input values and the outputs' digests of a run, in one archive."""
