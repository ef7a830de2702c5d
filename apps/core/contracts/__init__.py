"""Frozen shapes that cross a process boundary. Standard library only: the trainer and the engine import this too."""
