"""The Python API: one model, lowered in the calling process, for scripts and notebooks."""
