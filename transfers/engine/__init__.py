"""Carry out a transfer: its request, its ends, the operation, and the routes that bytes take."""
