"""What pages show, read from other rooms' tables into plain values. Nothing here writes or knows HTTP."""
