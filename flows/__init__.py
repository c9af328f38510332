"""The flows (one model, one zoo) and the command line that starts them. Importing this does not import Prefect."""
