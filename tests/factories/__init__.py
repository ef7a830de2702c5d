"""Rows for tests, with as little in them as a test needs. One file a room."""
