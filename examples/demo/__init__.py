"""Closes the loop once on real parts and prints what improved. Run by `make demo`."""
