"""Journals, receipts and records of operations, and what can be read from them."""
