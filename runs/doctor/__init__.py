"""Check a site step by step, from its name to a test job, and suggest a fix for the first failure."""
