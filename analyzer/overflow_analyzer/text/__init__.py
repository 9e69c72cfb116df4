"""Escaping, tables, terminals, wording, strict JSON."""
