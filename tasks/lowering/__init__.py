"""The DAG of stages, and the params of their calls. Edits change stage keys only by what they pass to stages."""
