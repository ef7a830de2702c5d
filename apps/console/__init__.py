"""Pages and live sockets for people. Owns no tables: it reads by `queries` and changes by other rooms' services."""
