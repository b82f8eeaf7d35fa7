"""Runs on one page that needs nothing else: read in a browser, printed, or sent to somebody."""
