"""artifacts.pte."""
