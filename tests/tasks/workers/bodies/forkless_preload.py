"""A preload module after which the server cannot fork: the state of a machine that has no processes left."""

import errno
import os


def _no_fork():
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


os.fork = _no_fork
