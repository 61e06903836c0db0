"""The oracle: beam recall in float64, plain and slow, from the definition alone. It shares no code with the engine."""

from engine.reference.items import Item, items_of
from engine.reference.search import OracleResult, Search, oracle_recall

__all__ = ["Item", "OracleResult", "Search", "items_of", "oracle_recall"]
