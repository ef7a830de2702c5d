"""Models that need no hub: SmolLM2 converted from its package, and a tiny random one for tests.

Each module writes a folder that vLLM serves and transformers loads; neither knows who will use it.
"""
