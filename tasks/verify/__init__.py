"""Programs and files as they run: compared with eager, and scored. Edits change stage keys."""
