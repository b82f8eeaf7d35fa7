"""Show what was done and what runs now as pages: `hibali report`, `hibali runs report`, `hibali dashboard`, and notebooks."""
