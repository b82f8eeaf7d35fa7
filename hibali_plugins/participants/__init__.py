"""Run a pipeline for each participant or session of a BIDS dataset: `hibali run --each-participant`, `hibali runs participants`."""
