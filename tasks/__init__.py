"""The lowering: stages, their keys, the workers they run in, and the targets they lower to."""
