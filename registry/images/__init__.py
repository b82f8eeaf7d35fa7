"""Container images of pipelines."""
