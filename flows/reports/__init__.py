"""Contents of a run's files, and comparisons: as text, tables and the HTML page."""
