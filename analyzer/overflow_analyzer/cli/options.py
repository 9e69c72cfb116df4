"""What the commands have in common: their class, the TRACE argument, ``--rank``, ``--format``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, Literal

import click

Format = Literal["text", "json", "markdown"]
"""How a result is written: for a terminal, for a program (strict JSON), for pasting into an issue."""

Decorator = Callable[[Callable[..., int]], Callable[..., int]]

_EXAMPLE: Final = "Example:\n"


class TraceCommand(click.Command):
    """A command whose help is its function's docstring, the lines of its ``Example:`` kept as they stand."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        if self.help is not None:
            self.help = inspect.cleandoc(self.help).replace(_EXAMPLE, f"\b\n{_EXAMPLE}")


def trace_argument(name: str = "trace") -> Decorator:
    """The path of a trace. It is opened by the library, whose errors say more than a check here could."""
    return click.argument(name, type=click.Path(readable=False))


def rank_option() -> Decorator:
    """``--rank R``."""
    return click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Only this rank of a distributed run.")


def output_options(metavar: str, text: str) -> Decorator:
    """``-o`` and ``--overwrite``, for ``cli.output.open_output``."""

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        overwrite = click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
        return click.option("-o", "--output", metavar=metavar, type=click.Path(), required=True, help=text)(
            overwrite(function)
        )

    return decorate


def format_option(*more: str) -> Decorator:
    """``--format text|json|markdown`` and what more a command has for programs; the parameter is ``output_format``."""
    for_programs = " and ".join(["json (strict)", *more])
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(["text", "json", "markdown", *more]),
        default="text",
        show_default=True,
        help=f"text for reading, {for_programs} for programs, markdown for pasting into an issue.",
    )
