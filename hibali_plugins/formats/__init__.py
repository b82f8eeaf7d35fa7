"""Convert other descriptions of tools to Boutiques descriptors, and pipelines to other descriptions."""
