"""The stream side: wire protocol, intake, offsets, batching, replies, metrics, health, settings, command line."""
