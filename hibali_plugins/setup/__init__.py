"""Set up the first sites, and find what is wrong with one: `hibali init`, `hibali sites import`, `hibali doctor`."""
