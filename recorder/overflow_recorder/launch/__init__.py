"""`overflow-record`: recording a script without changing it."""
