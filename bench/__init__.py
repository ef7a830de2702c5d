"""Measurements; each prints a table and one line of JSON."""
