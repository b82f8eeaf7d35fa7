"""Routes: one module or folder for each way of transferring data."""
