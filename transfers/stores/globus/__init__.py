"""Collections that Globus reaches."""
