"""``overflow-record``: runs an unchanged training script with the recorder on."""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import os
import shlex
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from overflow_recorder.errors import BatchLimitReached, TraceExistsError
from overflow_recorder.helpers.arguments import DataclassArgumentParser, UnrecognizedArgumentsError
from overflow_recorder.helpers.arguments.converters import FALSE_TEXTS, TRUE_TEXTS
from overflow_recorder.helpers.arguments.fields import Argument, arguments_of, did_you_mean
from overflow_recorder.helpers.distributed import rank_and_world_size
from overflow_recorder.launch.launching import CannotStartError, die_if_interrupted, run_module, run_script
from overflow_recorder.launch.recorded_run import PROGRAM, RecordedRun, say
from overflow_recorder.recorder_arguments import RecorderArguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


PREFIX: Final = "OVERFLOW_RECORD_"
_USAGE: Final = f"{PROGRAM} [options] train.py [arguments]\n       {PROGRAM} [options] -m package [arguments]"
_DESCRIPTION: Final = """\
Run an unchanged training script with the recorder on. The model is the outermost module called that has trainable
parameters. The first inf/nan in it prints the report of the frames before it and ends the script with a traceback.
Then `overflow-analyze` explains what was recorded.
"""
_EPILOG: Final = f"""\
Every option is also an environment variable, such as {PREFIX}OUTPUT or {PREFIX}MAX_FRAMES_TO_SAVE.
The command line outranks the variables. An option that takes several values ends at the next option, at a file, or
at --.

examples:
  {PROGRAM} train.py --lr 3e-4
  {PROGRAM} --output runs/1.parquet --on_nonfinite warn -m package.train
  torchrun --nproc_per_node 4 -m overflow_recorder train.py

The exit code is the script's own; 1 if an inf/nan ended the script; 2 if the script did not start.
"""


@dataclass
class LaunchArguments:
    """The options of ``overflow-record`` itself."""

    _argument_group_name = "what to record, and where to"

    output: Path = field(
        default=Path("run.parquet"),
        metadata={"help": "The trace's directory; an existing one is refused without --overwrite.", "aliases": "-o"},
    )
    model: str | None = field(
        default=None,
        metadata={
            "help": "The model to record: a class, or a variable of the script such as net or trainer.model.",
            "metavar": "NAME",
        },
    )


class _Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


class _Parser(DataclassArgumentParser):
    def error(self, message: str) -> NoReturn:
        # One line: the usage would bury it.
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the script runs in this process.

    Args:
        arguments: What stands after the program's name; None for ``sys.argv[1:]``.

    Returns:
        0: the script has ended, or ``abort_after_batch_num`` was reached.

    Raises:
        SystemExit: The script's own; or code 2, with a line on stderr: the script was not started.
        BaseException: What the script raises.
    """
    parser = make_parser()
    own, program = split_line(parser, list(sys.argv[1:] if arguments is None else arguments))
    launch, options = _parse(parser, own)
    if not program or program == ["-m"]:
        parser.error(f"no script is given; usage: {_USAGE}")
    output = _output(parser, launch.output, overwrite=options.overwrite)
    run = RecordedRun(output, launch.model, options)

    atexit.register(die_if_interrupted)  # before whatever else registers, so that it is called last

    def begin() -> None:
        _require_torch(parser)
        run.begin()

    try:
        if program[0] == "-m":
            run_module(program[1], program[2:], before=begin)
        else:
            run_script(program[0], program[1:], before=begin)
    except CannotStartError as error:
        parser.error(str(error))
    except BatchLimitReached as error:
        say(str(error))
    return 0


def make_parser() -> DataclassArgumentParser:
    """Return the parser of the options that stand before the program."""
    parser = _Parser(
        [LaunchArguments, RecorderArguments],
        prog=PROGRAM,
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {_version()}")
    return parser


def _version() -> str:
    try:
        return metadata.version("overflow-trace")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "(not installed)"


def split_line(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into our options and the program with its own: everything from the program on is its own."""
    index = 0
    while index < len(arguments):
        text = arguments[index]
        if text == "--":
            return arguments[:index], _program(arguments[index + 1 :])
        if not text.startswith("-") or (text.startswith("-m") and not text.startswith("--")):
            return arguments[:index], _program(arguments[index:])
        index += 1 + _values_taken(parser, text, arguments[index + 1 :])
    return arguments, []


def _program(arguments: list[str]) -> list[str]:
    if arguments and arguments[0].startswith("-m") and arguments[0] != "-m":
        return ["-m", arguments[0][2:], *arguments[1:]]  # -mpackage, as Python takes it
    return arguments


def _values_taken(parser: argparse.ArgumentParser, option: str, following: list[str]) -> int:
    """How many of the texts behind an option are its own."""
    action = parser._option_string_actions.get(option)
    if action is None or action.nargs == 0:  # unknown, of the form --option=value, or one that takes none
        return 0
    if action.nargs is None:
        return 1
    if action.nargs == "?":
        return int(bool(following) and following[0].lower() in (*TRUE_TEXTS, *FALSE_TEXTS))
    ends = (index for index, text in enumerate(following) if text.startswith("-") or _is_program(text))
    return next(ends, len(following))


def _is_program(text: str) -> bool:
    return text.endswith(".py") or Path(text).is_file() or (Path(text) / "__main__.py").is_file()


def _parse(parser: DataclassArgumentParser, own: list[str]) -> tuple[LaunchArguments, RecorderArguments]:
    try:
        parser.set_defaults(**environment_options(parser.dataclass_types, os.environ))
        parsed: tuple[Any, ...] = parser.parse_args_into_dataclasses(own, look_for_args_file=False)
    except UnrecognizedArgumentsError:
        raise
    except ValueError as error:
        parser.error(str(error))
    return parsed[0], parsed[1]


def environment_options(kinds: Iterable[type], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that variables give to dataclasses' fields, by name; an empty variable is none.

    The variable of a field ``max_bytes`` is ``OVERFLOW_RECORD_MAX_BYTES``. Its text is what would stand behind the
    option: where that takes several values, they are split and quoted as a shell does.

    Raises:
        ValueError: A variable with the prefix is no field's, or its text is not of the field's type.
    """
    known = {f"{PREFIX}{argument.name.upper()}": argument for kind in kinds for argument in arguments_of(kind)}
    given = {name: text for name, text in environment.items() if name.startswith(PREFIX) and text}
    for name in given:
        if name not in known:
            raise ValueError(f"the environment variable {name} is no option's{did_you_mean(name, known)}")
    return {known[name].name: _converted(name, known[name], text) for name, text in given.items()}


def _converted(name: str, argument: Argument, text: str) -> Any:
    label, converter = f"the environment variable {name}", argument.converter
    try:
        texts = [text] if converter.nargs is None else shlex.split(text)
    except ValueError as error:  # a quotation is not closed
        raise ValueError(f"{label}: {error}") from None
    return argument.convert(converter.from_texts, texts, label)


def _output(parser: argparse.ArgumentParser, output: Path, *, overwrite: bool) -> Path:
    """Return the trace's absolute path; what stands in the way there is said before the script has begun."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restart != "0":  # torchrun starts the workers again: what the crash left behind is not replaced
        output = output.with_name(f"{output.stem}-restart-{restart}{output.suffix}")
    output = output.absolute()
    try:
        _check_free(output, *rank_and_world_size(), overwrite=overwrite)
    except (TraceExistsError, ValueError) as error:
        parser.error(str(error))
    return output


def _check_free(output: Path, rank: int, world_size: int, *, overwrite: bool) -> None:
    from overflow_recorder.storage.claiming import check_no_foreign_files, other_ranks

    check_no_foreign_files(output)
    if overwrite or not output.is_dir():
        return
    # Other ranks of this run may have begun already: theirs is theirs to check.
    mine = output / f"rank={rank}"
    if (mine.is_dir() and any(mine.iterdir())) or (rank == 0 and any(other_ranks(output, world_size))):
        raise TraceExistsError(f"{output} holds a trace: choose another --output, or --overwrite to replace it")


def _require_torch(parser: argparse.ArgumentParser) -> None:
    try:
        found = importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        parser.error("torch is not installed here: pip install 'overflow-trace[recorder]'")
