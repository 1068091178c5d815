"""KV beyond the engine's own blocks: the connector through which an engine loads and stores it."""

from pyvt.kv_tier.connector import BlockAccess, ConnectorRequest, KVConnector, KVEvent, KVLayout
from pyvt.kv_tier.memory_connector import MemoryConnector

__all__ = [
    "BlockAccess",
    "ConnectorRequest",
    "KVConnector",
    "KVEvent",
    "KVLayout",
    "MemoryConnector",
]
