"""Places that hold data; one module for each kind."""
