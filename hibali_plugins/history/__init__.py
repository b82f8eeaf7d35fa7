"""Show the history of operations from the ledger."""
