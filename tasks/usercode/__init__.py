"""The user's code: modules, inputs and functions, in worker processes. Edits change stage keys."""
