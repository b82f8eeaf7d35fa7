"""Store files at a system behind FirecREST, and send it requests for jobs."""
