"""The recall engine: model, request-level state, exact beam search, resident catalogs. Knows nothing of Kafka or Redis."""
