"""What is better than what: corrected answers, comparisons of two, rankings of several.

`models` are the pairs as people and judges gave them, `services` every change to them, `pairs` and `corrections` what a
trainer reads: preference pairs, and answers to imitate.
"""
