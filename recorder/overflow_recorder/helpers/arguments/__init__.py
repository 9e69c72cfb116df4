"""Command-line and file arguments made from dataclasses' type hints."""

from overflow_recorder.helpers.arguments.parser import DataclassArgumentParser, UnrecognizedArgumentsError

__all__ = ["DataclassArgumentParser", "UnrecognizedArgumentsError"]
