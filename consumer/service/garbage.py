"""The garbage collector of a process that serves."""

import gc

YOUNG = 50_000
"""Objects made and not freed before the collector looks at them. What a request leaves behind is in no cycle."""


def settle() -> None:
    """After the warm-up: what lives by now is never looked at again, what comes is looked at rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
