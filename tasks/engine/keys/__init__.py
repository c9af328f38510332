"""The ingredients of stage keys, found without torch and without importing or running the user's code."""
