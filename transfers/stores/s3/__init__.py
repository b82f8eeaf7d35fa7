"""Stores for object storage servers that speak S3."""
