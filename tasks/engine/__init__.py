"""How stages run: their contract, keys, runners and workers. Edits change no stage key."""
