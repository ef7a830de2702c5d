"""End users' thumbs, straight from their browsers, by a token that everybody may see: it can judge the answers of one
agent by their ids, so often a minute, and can read nothing.

`models` are the tokens, `services` make them, judge by them and take back, `limits` count in Valkey.
"""
