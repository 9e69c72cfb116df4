"""The command line: one module a command, each parsing, calling the library once and rendering."""
