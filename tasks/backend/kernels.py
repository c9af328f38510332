"""ExecuTorch's kernels in this process, loaded in one order.

`executorch.kernels.quantized` also has kernels of operators that the runtime has. Which of them is used, and so the
last digits of its outputs, depends on which library is loaded first (executorch 1.5.1, on Linux): here the runtime's,
as in processes that only run files.
"""

import executorch.runtime  # isort: skip
import executorch.kernels.quantized  # isort: skip

__all__ = ["executorch"]
