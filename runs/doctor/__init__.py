"""A site looked at from its name to a job, one step after the other, and what to do about the first that fails."""
