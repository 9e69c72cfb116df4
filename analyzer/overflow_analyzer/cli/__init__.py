"""The command line: one module a command, each parsing, calling the library once and rendering.

A command's module holds one click command named ``command``, made with ``TraceCommand`` of ``cli.options``; it returns
its exit code. It is listed here with its line of help, so that ``--help`` imports none of them.

Exit codes: 0 nothing found, no difference; 1 an inf/nan was found, traces differ; 2 usage; 3 unreadable or nothing was
recorded; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Final

import click

from overflow_analyzer.cli.failures import exit_code_for
from overflow_analyzer.cli.output import finish, forget_stdout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

__all__ = ["COMMANDS", "PROGRAM", "group", "main"]

PROGRAM: Final = "overflow-analyze"
_COMPLETE: Final = "_OVERFLOW_ANALYZE_COMPLETE"
"""The variable by which a shell asks for completions, as click names it."""

COMMANDS: Final[dict[str, str]] = {
    "report": "The first inf/nan, the frames before it, and what produced it.",
    "batch": "One whole batch, in the standard report's format.",
    "info": "What is in a trace: ranks, batches, gaps, sizes, how the run ended.",
    "top": "Modules by least headroom, fastest growth, most underflow.",
    "history": "One tensor or several over batches, with jumps marked.",
    "diff": "Where two runs first differ, and every other difference.",
    "html": "A run as one page with pictures.",
    "compact": "The whole trace as one Parquet file.",
    "watch": "Follow a run that is being recorded: batches, headroom, alarms.",
    "export": "A trace as TensorBoard events, CSV or JSON lines.",
}
"""Name of a command (its module is ``cli.NAME``) -> the line that ``--help`` shows for it."""


class _Commands(click.Group):
    """The commands above, each imported when it is run; what is no command is a trace to report on."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  the same
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # click 8.1 would take it for --help and exit with 0
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        if args and args[0] not in COMMANDS and args[0] not in ("--help", "-h", "--version"):
            if not ctx.resilient_parsing:  # which a shell that completes the line asks for
                likely = difflib.get_close_matches(args[0], COMMANDS, n=1)
                if likely and not os.path.lexists(args[0]):
                    raise click.UsageError(f"No such command or trace: {args[0]!r}. Did you mean {likely[0]!r}?", ctx)
            args = ["report", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the first word: a command, or a path where no command begins so."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file"), *super().shell_complete(ctx, incomplete)]


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="",
    subcommand_metavar="[COMMAND] TRACE [OPTIONS]",
)
@click.version_option(package_name="overflow-trace", prog_name=PROGRAM)
def group() -> None:
    """Find the first inf/nan in a recorded training run, see what produced it, compare runs.

    `overflow-analyze TRACE` is short for `overflow-analyze report TRACE`. Options stand before or after TRACE. If a
    trace has the name of a command, give its path (`./top`) or write the command before it (`report top`).

    Exit codes: 0 nothing found or no difference, 1 an inf/nan was found or the traces differ, 2 wrong usage, 3 the
    trace cannot be read or nothing was recorded.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, of ``arguments`` or ``sys.argv[1:]``, and return the exit code."""
    with contextlib.suppress(AttributeError):  # stdout may be closed, or a stand-in that shows everything
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # any stream may stand there
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except BaseException as error:  # noqa: BLE001  whatever it was, it becomes one line and an exit code
        code = exit_code_for(error)
        try:
            finish()
        except OSError:  # what was to be written is still buffered: the interpreter would try again and exit with 120
            forget_stdout()
        return code


def _run(arguments: list[str]) -> int:
    if os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, PROGRAM, _COMPLETE, os.environ[_COMPLETE])
    try:
        with group.make_context(PROGRAM, arguments) as ctx:
            code: int | None = group.invoke(ctx)
    except click.exceptions.Exit as done:  # --help and --version end so
        code = done.exit_code
    finish()
    return code or 0
