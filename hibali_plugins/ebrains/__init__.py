"""Sites that are buckets of the EBRAINS data proxy, or datasets of EBRAINS."""
