"""Convert other descriptions of tools to Boutiques descriptors, and pipelines to other descriptions.

Adds `pipelines import`, `pipelines create` and `pipelines export`.
"""
