"""Runs of zoos, with Prefect and without, what is reported and released of them, and the command line.

Importing this does not import Prefect, which only `flows.prefect` does.
"""
