"""Figures of tensors in the host's memory, by numpy."""
