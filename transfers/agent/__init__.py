"""The POSIX half of hibali: standard library only, Python 3.6 and later, run here or sent to a site."""
