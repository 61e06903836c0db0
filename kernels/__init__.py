"""Device code: each Triton kernel beside a plain-torch twin with the same signature."""
