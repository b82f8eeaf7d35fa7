"""What to say to each scheduler, and what its answers mean."""
