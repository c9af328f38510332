"""What stage keys are made of, found without torch and without importing or running the user's code."""
