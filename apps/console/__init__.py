"""Pages and live sockets for people. Owns no tables: it reads through `queries` and changes through other rooms' services."""
