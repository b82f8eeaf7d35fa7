"""Ways of carrying data; one module for each."""
