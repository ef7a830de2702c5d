"""Stand-ins that are real servers."""
