"""Evaluators for accuracy gates: ``accuracy: {evaluator: pteforge.evaluators.perplexity:neg_perplexity, ...}``."""
