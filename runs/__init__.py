"""Running pipelines elsewhere."""
