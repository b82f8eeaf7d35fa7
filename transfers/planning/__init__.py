"""Decide what a transfer does before anything changes: plans, and what refuses them."""
