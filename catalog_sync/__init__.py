"""The catalog on its way to the engine: sources, binary format, Redis layout, publisher, watcher."""
