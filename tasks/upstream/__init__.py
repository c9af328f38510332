"""Patches of upstream's classes. Each module names the version it is for, the reason, and when to delete it."""
