"""Runs of zoos, their reports and releases, and the command line; only `flows.prefect` imports Prefect."""
