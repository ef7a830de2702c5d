"""The tests under ml/ need transformers: `test_in_ml_environment.py` runs them in the environment that has it."""

collect_ignore = ["ml"]
