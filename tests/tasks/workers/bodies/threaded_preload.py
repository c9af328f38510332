"""A preload module that leaves a thread running, which no fork would have."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
