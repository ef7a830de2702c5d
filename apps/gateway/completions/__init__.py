"""`POST /v1/completions`: a prompt is gone on with, no chat template around it.

shapes: what is accepted; behaviour: what is asked and kept; http: bytes in and out.
"""
