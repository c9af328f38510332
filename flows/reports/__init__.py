"""What a run's files contain, and how they compare: as text, tables and the HTML page."""
