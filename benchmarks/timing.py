"""The former name of ``call_us``; goes away."""

from benchmarks.measure import call_us as graph_time

__all__ = ["graph_time"]
