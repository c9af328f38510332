"""Why something fails or loses quality, one stage a file."""
