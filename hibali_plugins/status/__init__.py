"""What runs now, and how a folder differs from the place it was transferred to: `hibali status`."""
