"""Finding trajectories: a small language that stands in the address, compiled to one query over indexes.

`language` reads and writes it, `fields` says what may stand in it, `compiling` turns it into rows, `words` keeps what
was said searchable, `services` is what REST and console call, `views` are names that people give to searches.
"""
