"""Files that a run hands out, and releases of them: published, compared and reproduced."""
