"""Claw-R1's own paths, for its unmodified clients. Off unless CLAW_CLAWR1_PROJECT names a project: they send no key."""
