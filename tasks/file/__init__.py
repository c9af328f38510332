"""Files: packing payloads into one, serializing it, and saying what it contains. Edits change stage keys."""
