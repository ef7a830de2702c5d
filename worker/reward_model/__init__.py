"""Scores conversations with a sequence-classification model: lines of JSON in, lines of JSON out. No Django."""
