"""The processes of the studies' programs."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading
import time


def _stay_with_parent() -> None:
    """Ends this process when the one that started it is gone: killed, it could not tell."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pool(jobs: int) -> concurrent.futures.ProcessPoolExecutor:
    """As many processes, which end with this one however it ends."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context, initializer=_stay_with_parent)
