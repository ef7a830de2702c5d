"""`POST /v1/chat/completions`.

shapes: what is accepted; behaviour: what is asked and kept; http: bytes in and out.
"""
