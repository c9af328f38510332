"""tasks.stages."""
