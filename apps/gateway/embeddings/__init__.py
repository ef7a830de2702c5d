"""`POST /v1/embeddings`: passed on to an engine that serves them.

shapes: what is accepted; behaviour: what is asked and answered; http: bytes in and out. Nothing of it is captured: an
embedding is no action of the model that training works on.
"""
