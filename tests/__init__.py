"""What users rely on, tried on real parts."""
