"""Review queues: who judges what, each on their own, until enough people have.

`models` are queues, items and reviews with the rules as constraints; `services` make and change queues; `filling` puts
items in (from a search, or by hand); `working` is one reviewer's way through a queue: take, submit, skip, undo;
`deciding` is what follows when people disagree; `agreement` is Krippendorff's alpha (pure); `results` count; `events`
number what happened, so that an open page misses nothing.
"""
