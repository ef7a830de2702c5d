"""`POST /v1/responses` and `GET /v1/responses/{id}`.

shapes: what is accepted; tools and history: how tools and input items become a chat request; sealing: reasoning that
travels with the client; memory: earlier answers, from the pool; items: what is answered, item by item, with its events;
behaviour: what is asked and said; http: bytes in and out.
"""
