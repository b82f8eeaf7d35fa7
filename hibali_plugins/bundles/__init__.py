"""Write runs to one file from which others can repeat them, an RO-Crate: `hibali bundle`, `hibali runs export`."""
