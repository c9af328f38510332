"""Stage bodies. Imported in worker processes only, except for stages that need no torch (see `tasks.catalog`)."""
