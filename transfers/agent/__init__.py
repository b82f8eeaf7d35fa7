"""Handle the files of one POSIX host: Python 3.6 or later and its standard library alone, run here or sent to a site."""
