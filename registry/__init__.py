"""Describe, store and exchange pipelines."""
