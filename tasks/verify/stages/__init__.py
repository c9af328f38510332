"""Proofs and scores, one stage a file."""
