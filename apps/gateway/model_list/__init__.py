"""`GET /v1/models` and `/v1/models/{id}`: the names that a key can ask for."""
