"""A preload module that takes its time, as the import of torch does."""

import time

time.sleep(1.5)
