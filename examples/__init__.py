"""Programs that use the platform from outside: by base URL, key and REST only."""
