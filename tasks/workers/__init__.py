"""tasks.workers."""
