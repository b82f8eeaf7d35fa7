"""Run pipelines at sites: submit, follow, collect and reuse runs."""
