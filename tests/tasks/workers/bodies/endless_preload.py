"""A preload module whose import does not end."""

import os
import threading
from pathlib import Path

Path(os.environ["PTEFORGE_TEST_ANNOUNCE"]).write_text(str(os.getpid()))
threading.Event().wait()
