"""`POST /v1/generate`: tokens in, tokens out, for agents that render their prompts themselves."""
