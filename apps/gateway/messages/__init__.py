"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's dialect.

shapes, content, tools: what is accepted and the chat form it becomes; voice: the answer in Anthropic's words; errors:
failures in them; behaviour: what is asked and kept; http: bytes in and out.
"""
