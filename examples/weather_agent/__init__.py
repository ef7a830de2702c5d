"""A small tool-using agent, the tasks it is given, and the verifier that says how well it did."""
