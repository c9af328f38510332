"""From edge programs to payloads, one stage a file."""
