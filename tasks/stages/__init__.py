"""The stages of the lowering, one file each: parameters, typed inputs and outputs, body.

Importing a stage imports neither torch nor ExecuTorch: bodies import those, and the folders of functions over programs
(`export`, `quantize`, `lower`, `verify` and so on), when they run. A stage imports another stage only for its
parameters: its code is no part of this one's key (see `tasks.engine.keys`). An edit changes the keys of that stage.
"""
