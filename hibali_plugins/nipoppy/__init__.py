"""Run the jobs of nipoppy at a site: `hibali nipoppy`."""
