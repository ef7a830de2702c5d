"""The door for agents: dialects, routing, streaming and capture of model calls. Owns no tables."""
