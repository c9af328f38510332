"""From payloads to the files that are shipped, one stage a file."""
