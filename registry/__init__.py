"""Knowing pipelines."""
