"""Run Jupyter as a job at a site, and open a tunnel to it: `hibali notebook`."""
