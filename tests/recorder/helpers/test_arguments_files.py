"""Arguments from dicts, JSON, YAML and .args files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_recorder.helpers.arguments import DataclassArgumentParser
from overflow_recorder.helpers.arguments.files import read_args_file


@dataclass
class Train:
    rate: float
    output: Path = Path("out")
    layers: list[int] = field(default_factory=list)
    shuffle: bool = True


@dataclass
class Evaluate:
    eval_every: int = 5


PARSER = DataclassArgumentParser([Train, Evaluate])


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- dicts


def test_a_dict_fills_the_dataclasses_and_defaults_the_rest() -> None:
    made = PARSER.parse_dict({"rate": 1, "eval_every": "3", "output": "é"})

    assert made == (Train(1.0, Path("é"), [], shuffle=True), Evaluate(3))


def test_unknown_keys_are_refused_unless_allowed() -> None:
    values = {"rate": 1.0, "eval_evry": 3, "zz": 4}

    with pytest.raises(
        ValueError, match=r"not a field of Train, Evaluate: 'eval_evry' .did you mean eval_every.., 'zz'"
    ):
        PARSER.parse_dict(values)
    assert PARSER.parse_dict(values, allow_extra_keys=True) == (Train(1.0), Evaluate())


def test_a_missing_value_is_refused_with_class_and_field() -> None:
    with pytest.raises(ValueError, match=r"^Train\.rate: missing, and it has no default"):
        PARSER.parse_dict({})


def test_a_missing_bool_without_default_is_refused() -> None:
    @dataclass
    class Flag:
        on: bool

    with pytest.raises(ValueError, match=r"^Flag\.on: missing"):
        DataclassArgumentParser(Flag).parse_dict({})


def test_the_dict_is_left_as_it_was() -> None:
    values: dict[str, Any] = {"rate": "1", "layers": [1]}

    (made, _) = PARSER.parse_dict(values)
    made.layers.append(2)

    assert values == {"rate": "1", "layers": [1]}


def test_default_factories_are_not_shared() -> None:
    first, second = PARSER.parse_dict({"rate": 1})[0], PARSER.parse_dict({"rate": 1})[0]

    first.layers.append(1)

    assert second.layers == []


def test_what_the_dataclass_itself_refuses_goes_up() -> None:
    @dataclass
    class Strict:
        x: int = 1

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ZeroDivisionError("mine")

    parser = DataclassArgumentParser(Strict)
    with pytest.raises(ZeroDivisionError, match="mine"):
        parser.parse_dict({"x": -1})
    with pytest.raises(ZeroDivisionError, match="mine"):
        parser.parse_args_into_dataclasses(["--x=-1"])


# --- JSON and YAML


def test_a_json_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.json", json.dumps({"rate": 1, "layers": [1, 2], "output": "模块"}))

    assert PARSER.parse_json_file(path) == (Train(1.0, Path("模块"), [1, 2]), Evaluate())
    assert PARSER.parse_json_file(str(path)) == PARSER.parse_json_file(path)


def test_a_yaml_file(tmp_path: Path) -> None:
    # GIVEN what YAML 1.1 reads otherwise than it looks: 1e-4 is a text, no a bool
    path = _write(tmp_path / "train.yaml", "rate: 1e-4\nlayers: [1, 2]\nshuffle: no\noutput: a b\n")

    assert PARSER.parse_yaml_file(path) == (Train(1e-4, Path("a b"), [1, 2], shuffle=False), Evaluate())


def test_an_empty_yaml_file_is_all_defaults(tmp_path: Path) -> None:
    assert DataclassArgumentParser(Evaluate).parse_yaml_file(_write(tmp_path / "empty.yaml", "")) == (Evaluate(),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"rate": ', "not valid JSON"),
        ("a.json", "[1]", "expected names with values, got a list"),
        ("a.json", '{"rate": "fast"}', r"Train\.rate: expected float, got 'fast'"),
        ("a.json", '{"rate": 1, "extra": 1}', "not a field of Train, Evaluate: 'extra'"),
        ("a.yaml", "rate: [", "not valid YAML"),
        ("a.yaml", "- 1", "expected names with values, got a list"),
        ("a.yaml", "rate: yes", r"Train\.rate: expected float, got True"),
        ("a.yaml", "rate: 1\n3: 4", "not a field of Train, Evaluate: '3'"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = _write(tmp_path / name, content)
    parse = PARSER.parse_json_file if name.endswith("json") else PARSER.parse_yaml_file

    with pytest.raises(ValueError, match=rf"{name}: {message}"):
        parse(path)


def test_bytes_that_are_no_text_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xff\xfe\xfa")

    with pytest.raises(ValueError, match=r"a\.yaml: not valid YAML"):
        PARSER.parse_yaml_file(path)
    with pytest.raises(ValueError, match=r"a\.yaml: not valid JSON"):
        PARSER.parse_json_file(path)


def test_extra_keys_in_files_can_be_allowed(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.json", '{"rate": 1, "extra": 1}')  # JSON is YAML

    assert PARSER.parse_json_file(path, allow_extra_keys=True)[0] == Train(1.0)
    assert PARSER.parse_yaml_file(path, allow_extra_keys=True)[0] == Train(1.0)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PARSER.parse_json_file(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        PARSER.parse_yaml_file(tmp_path / "none.yaml")


def test_yaml_without_pyyaml_says_what_to_install(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.yaml", "rate: 1")

    with mock.patch.dict(sys.modules, {"yaml": None}), pytest.raises(ImportError, match=r"overflow-trace\[yaml\]"):
        PARSER.parse_yaml_file(path)


TWICE = [
    ("a.json", '{"rate": 1, "rate": 2}', r"not valid JSON: Train\.rate is given twice"),
    ("a.yaml", "rate: 1\nrate: 2", r"not valid YAML: Train\.rate is given twice"),
    ("a.yaml", "rate: 1\n'rate': 2", r"not valid YAML: Train\.rate is given twice"),
    # A key inside a value is none of the fields.
    ("a.json", '{"rate": {"rate": 1, "rate": 2}}', "not valid JSON: 'rate' is given twice"),
    ("a.yaml", "rate:\n  rate: 1\n  rate: 2", "not valid YAML: 'rate' is given twice"),
]


@pytest.mark.parametrize(("name", "content", "message"), TWICE)
def test_a_key_with_two_values_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = _write(tmp_path / name, content)
    parse = PARSER.parse_json_file if name.endswith("json") else PARSER.parse_yaml_file

    with pytest.raises(ValueError, match=rf"{name}: {message}$"):
        parse(path)


def test_keys_that_yaml_merges_are_no_keys_with_two_values(tmp_path: Path) -> None:
    # GIVEN a mapping that is merged before it is itself made
    text = "a: {b: &own {<<: &base {rate: 1, eval_every: 2}, rate: 3}}\n<<: *own\n<<: *base\n1: x\n'1': y\n"
    path = _write(tmp_path / "a.yaml", text)

    # THEN what is written first counts, as PyYAML has it
    made = PARSER.parse_yaml_file(path, allow_extra_keys=True)
    assert made == (Train(yaml.safe_load(text)["rate"]), Evaluate(2))


def test_a_json_option_with_two_values_for_a_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = DataclassArgumentParser(make_dataclass("Args", [("x", dict)]))

    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses(["--x", '{"a": 1, "a": 2}'])

    assert "Args.x: expected dict" in (error := capsys.readouterr().err)
    assert "not valid JSON: 'a' is given twice" in error


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.args"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str) -> None:
    # GIVEN what an editor on Windows puts before the first character
    text = {"a.json": '{"rate": 1}', "a.yaml": "rate: 1", "a.args": "--rate 1"}[name]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")

    # THEN
    if name == "a.args":
        assert PARSER.parse_args_into_dataclasses([], args_filename=path)[0] == Train(1.0)
    else:
        assert (PARSER.parse_json_file if name == "a.json" else PARSER.parse_yaml_file)(path)[0] == Train(1.0)


# --- .args files


@given(st.lists(st.text("ab #'\"\n\\", max_size=8), max_size=4).map(" ".join))
@settings(max_examples=40, deadline=None)
def test_an_args_file_is_split_as_a_shell_does(text: str) -> None:
    # GIVEN what a shell makes of the text; an open quotation is an error of both
    shell = subprocess.run(
        ["bash", "-c", f'set -f; printf "%s\\0" x {text}\n'], capture_output=True, text=True, check=False
    )
    with tempfile.TemporaryDirectory() as directory:
        path = _write(Path(directory) / "a.args", text)

        # WHEN
        try:
            found = read_args_file(path)
        except ValueError:
            found = None

    # THEN
    lines_are_one = "\n" not in text and not text.endswith("\\")
    if lines_are_one and found is not None:
        assert ["x", *found] == shell.stdout.split("\0")[:-1]


def test_comments_in_an_args_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.args", "# the peak\n--rate 1  # not 2\n--output 'a # b'\n#--no_shuffle\n--layers 1\n")

    made = PARSER.parse_args_into_dataclasses([], args_filename=path)[0]

    assert made == Train(1.0, Path("a # b"), [1])


def test_a_number_sign_inside_a_word_is_no_comment(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.args", "--rate 1 --output a#b/''#c")

    assert PARSER.parse_args_into_dataclasses([], args_filename=path)[0] == Train(1.0, Path("a#b/#c"))


def test_the_last_word_is_the_command_lines(tmp_path: Path) -> None:
    # GIVEN
    default = _write(tmp_path / "default.args", "--rate 1 --eval_every 1 --layers 1 1")
    first = _write(tmp_path / "first.args", "--rate 2\n--eval_every 2 --output 'two words'\n")
    second = _write(tmp_path / "second.args", "--rate 3")

    # WHEN
    made = PARSER.parse_args_into_dataclasses(
        ["--args-file", str(first), "--no_shuffle", f"--args-file={second}", "--rate", "4"],
        args_filename=default,
        args_file_flag="--args-file",
    )

    # THEN
    assert made == (Train(4.0, Path("two words"), [1, 1], shuffle=False), Evaluate(2))


def test_later_named_files_hold_over_earlier_ones(tmp_path: Path) -> None:
    first = _write(tmp_path / "first.args", "--rate 2")
    second = _write(tmp_path / "second.args", "--rate 3")

    made = PARSER.parse_args_into_dataclasses(["--f", str(first), "--f", str(second)], args_file_flag="--f")

    assert made[0] == Train(3.0)


def test_the_scripts_own_args_file(tmp_path: Path) -> None:
    # GIVEN
    _write(tmp_path / "train.args", "--rate 1 --eval_every 2")

    # WHEN
    with mock.patch.object(sys, "argv", [str(tmp_path / "train.py"), "--eval_every", "3"]):
        found = PARSER.parse_args_into_dataclasses()
        with pytest.raises(SystemExit):  # rate is missing
            PARSER.parse_args_into_dataclasses(look_for_args_file=False)

    # THEN
    assert found == (Train(1.0), Evaluate(3))


def test_a_named_file_stands_in_for_the_scripts_own(tmp_path: Path) -> None:
    _write(tmp_path / "train.args", "--rate 1 --eval_every 2")
    other = _write(tmp_path / "other.args", "--rate 7")

    with mock.patch.object(sys, "argv", [str(tmp_path / "train.py")]):
        assert PARSER.parse_args_into_dataclasses(args_filename=other) == (Train(7.0), Evaluate())


@pytest.mark.parametrize("argv", [[], [""], ["-c"]])
def test_a_session_without_a_script_has_no_file(argv: list[str]) -> None:
    with mock.patch.object(sys, "argv", argv):
        assert PARSER.parse_args_into_dataclasses(["--rate", "1"]) == (Train(1.0), Evaluate())


def test_a_named_file_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.args"

    with pytest.raises(FileNotFoundError):
        PARSER.parse_args_into_dataclasses(["--rate", "1"], args_filename=missing)
    with pytest.raises(SystemExit) as stopped:
        PARSER.parse_args_into_dataclasses(["--rate", "1", "--f", str(missing)], args_file_flag="--f")
    assert stopped.value.code == 2
    assert "none.args" in capsys.readouterr().err


def test_an_open_quotation_names_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.args", "--output 'two words")

    with pytest.raises(ValueError, match=r"a\.args: No closing quotation"):
        PARSER.parse_args_into_dataclasses([], args_filename=path)


def test_the_flags_own_argument_must_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        PARSER.parse_args_into_dataclasses(["--rate", "1", "--f"], args_file_flag="--f")

    assert "argument --f: expected one argument" in capsys.readouterr().err


def test_the_help_is_the_parsers_own_where_a_flag_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        PARSER.parse_args_into_dataclasses(["--help"], args_file_flag="--f")

    assert "--eval_every" in capsys.readouterr().out


def test_the_callers_list_is_left_as_it_was(tmp_path: Path) -> None:
    texts = ["--f", str(_write(tmp_path / "a.args", "--rate 2")), "--rate", "1"]
    before = list(texts)

    PARSER.parse_args_into_dataclasses(texts, args_file_flag="--f")

    assert texts == before
