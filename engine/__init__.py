"""The recall engine: model, state of requests, exact beam search, resident catalogs. Knows neither Kafka nor Redis."""
