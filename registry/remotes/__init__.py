"""Where catalogues meet: one file for each kind of remote."""
