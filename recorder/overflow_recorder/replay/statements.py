"""From a loss, or another value outside the modules, to the operation: the statement that computed it is run again.

The variable that holds the value stands in a frame of the user's program, on the interpreter's stack, and its source
says how it was computed. Only statements are run again that compute a value and do nothing else, as far as can be seen.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import linecache
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from overflow_recorder.faults import describe_error, raised_by_signal_handler
from overflow_recorder.recording.random_states import random_states_kept
from overflow_recorder.recording.session import Session
from overflow_recorder.replay.figures import is_float, is_nonfinite
from overflow_recorder.replay.sources import frames_from, function_of, is_users, users_frames
from overflow_recorder.replay.untouched import Refused, surroundings
from overflow_recorder.replay.watch import OperationWatch, PublicNames, ancestors
from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    from types import FrameType

    from overflow_analyzer.format.origin import Operation


_RECORDING: Final = (Session.values.__code__, Session.losses_arrived.__code__)
_MOST_STATEMENTS: Final = 16
_BUILTINS: Final = (abs, float, int, len, list, max, min, range, round, sum, tuple, zip)
_COMPUTES: Final = (
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict, ast.GeneratorExp, ast.IfExp,
    ast.List, ast.ListComp, ast.Name, ast.Slice, ast.Subscript, ast.Tuple, ast.UnaryOp,
    ast.boolop, ast.cmpop, ast.comprehension, ast.expr_context, ast.keyword, ast.operator, ast.unaryop,
)  # fmt: skip


class _Variable(NamedTuple):
    """A variable of the user's program, and where its value was used."""

    frame: FrameType
    name: str
    line: int


def value_at_hand(context: str, frame: FrameType | None) -> torch.Tensor:
    """Return the loss, or the value given to ``record``, in whose recording an inf/nan was detected.

    Raises:
        Refused: It is no tensor of the program's.
    """
    for one in frames_from(frame):
        if one.f_code in _RECORDING:
            found = dict(one.f_locals["named"]).get(context)
            if isinstance(found, torch.Tensor):
                return found
    raise Refused("it was made outside the modules")


def find_in_statements(value: torch.Tensor, frame: FrameType | None, model: nn.Module, deadline: float) -> Operation:
    """Run the statements again that computed a value, back to the operation that made it non-finite.

    Args:
        value: The non-finite value.
        frame: From where on the stack is searched.
        model: The recorded model, of which nothing is run.
        deadline: On ``time.monotonic``'s clock.

    Raises:
        Refused: No such operation is found, or it cannot be done safely.
    """
    variable = _holder(value, frame)
    for step in range(_MOST_STATEMENTS):
        try:
            statement = _assignment(variable)
        except Refused as refused:
            raise (Refused(f"it came with {variable.name}") if step else refused) from None
        _refuse_effects(statement, variable, model)
        operation, given = _run(statement, variable, model, deadline)
        if operation is not None:
            return operation
        if given is None:
            raise Refused(f"line {statement.lineno}, which computes {variable.name}, was finite when it was run again")
        variable = _Variable(variable.frame, given, statement.lineno)
    raise Refused("it was computed in too many statements")


def _holder(value: torch.Tensor, frame: FrameType | None) -> _Variable:
    for one in users_frames(frame):
        for name, held in one.f_locals.items():
            if held is value:
                return _Variable(one, name, one.f_lineno)
    raise Refused("it was made outside the modules, and no variable of the program holds it")


def _assignment(variable: _Variable) -> ast.Assign | ast.AnnAssign:
    """Return the last statement of the variable's function, above the line where it was used, that computes it."""
    code, name = variable.frame.f_code, variable.name
    found = [one for one in _statements(code) if one.lineno < variable.line and name in _names_set(one)]
    last = max(found, key=lambda one: one.lineno, default=None)
    if isinstance(last, (ast.Assign, ast.AnnAssign)) and last.value is not None:
        target = last.targets[0] if isinstance(last, ast.Assign) else last.target
        if isinstance(target, ast.Name):
            return last
    where = "" if last is None else f", at line {last.lineno},"
    raise Refused(f"it was made outside the modules: how {name} was computed{where} cannot be told from its statement")


def _statements(code: types.CodeType) -> list[ast.stmt]:
    """Return the statements of the function, or of the script, whose code this is; those of functions in it are not."""
    try:
        scope: Any = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    if code.co_name != "<module>":
        functions = (one for one in ast.walk(scope) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
        first = code.co_firstlineno  # of the first decorator, where there is one
        scope = next((one for one in functions if first in {one.lineno, *(d.lineno for d in one.decorator_list)}), None)
    statements: list[ast.stmt] = []
    waiting = [] if scope is None else list(scope.body)
    while waiting:
        one = waiting.pop()
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            statements.append(one)
            waiting += [
                inner for inner in ast.iter_child_nodes(one) if isinstance(inner, (ast.stmt, ast.excepthandler))
            ]
    return statements


def _names_set(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement itself sets, not those that statements inside it set."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Delete)):
        parts: list[ast.AST] = [statement]
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        parts = [statement.target]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        parts = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    else:
        parts = []
    names = (one for part in parts for one in ast.walk(part) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, (ast.Store, ast.Del))}


def _refuse_effects(statement: ast.Assign | ast.AnnAssign, variable: _Variable, model: nn.Module) -> None:
    value = statement.value
    values = _values(variable.frame)
    ours = set(map(id, model.modules()))
    for node in () if value is None else ast.walk(value):
        if not isinstance(node, _COMPUTES):
            raise Refused(f"line {statement.lineno}, which computes {variable.name}, does more than that")
        if isinstance(node, ast.Call) and not _only_computes(node, values, ours):
            where = f"{ast.unparse(node.func)}(...), line {statement.lineno},"
            raise Refused(f"it comes out of {where} which may do more than compute: it is not run again")


def _only_computes(call: ast.Call, values: dict[str, Any], ours: set[int]) -> bool:
    called = _resolve(call.func, values)
    if called is None:  # a method of a value that is computed in between
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return hasattr(torch.Tensor, name) and not name.endswith("_") and name not in {"backward", "register_hook"}
    if isinstance(called, nn.Module):
        return ours.isdisjoint(map(id, called.modules()))
    owner = getattr(called, "__self__", None)
    if isinstance(owner, torch.Tensor):
        return not call.func.attr.endswith("_") if isinstance(call.func, ast.Attribute) else False
    if any(called is one for one in _BUILTINS) or str(getattr(called, "__module__", "")).partition(".")[0] in {
        "torch",
        "math",
    }:
        return True
    given = [_resolve(one, values) for one in (*call.args, *(keyword.value for keyword in call.keywords))]
    is_function = isinstance(called, types.FunctionType) and is_users(called.__code__.co_filename)
    return is_function and not any(isinstance(one, (nn.Module, torch.optim.Optimizer)) for one in given)


def _resolve(node: ast.expr, values: dict[str, Any]) -> Any:
    """Return what a dotted name stands for; None where it is anything else, or where reading it could run code."""
    if isinstance(node, ast.Name):
        return values.get(node.id, getattr(builtins, node.id, None))
    if not isinstance(node, ast.Attribute):
        return None
    owner = _resolve(node.value, values)
    plain = isinstance(owner, (types.ModuleType, nn.Module, torch.Tensor)) or owner is torch.Tensor
    held = vars(owner) if hasattr(owner, "__dict__") and not plain else {}
    return getattr(owner, node.attr, None) if plain else held.get(node.attr)


def _values(frame: FrameType) -> dict[str, Any]:
    return {**frame.f_globals, **frame.f_locals}


def _run(
    statement: ast.Assign | ast.AnnAssign, variable: _Variable, model: nn.Module, deadline: float
) -> tuple[Operation | None, str | None]:
    """Run a statement's right side.

    Returns:
        The operation in it that made the value non-finite, or the variable that was already so.
    """
    values, public = _values(variable.frame), PublicNames()
    named = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    known = {value.untyped_storage()._cdata: name for name, value in named.items() if value.layout == torch.strided}
    watch = OperationWatch(public, known, {}, model, _evaluate.__code__, deadline)
    code = compile(ast.Expression(statement.value), variable.frame.f_code.co_filename, "eval")  # type: ignore[arg-type]
    try:
        with random_states_kept([]), surroundings(), public, watch:
            result = _evaluate(code, values)
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        raise Refused(f"running line {statement.lineno} again raised {describe_error(error)}") from None
    finally:
        watch.restore_generators()
    with quiet():
        if not is_float(result) or not is_nonfinite(result):
            return None, None
        record = watch.record_of(result)
        records = ancestors([record] if record is not None else [])
        for one in records:
            if one.operation is not None and not one.given:
                return _placed(one.operation, variable.frame), None
        given = (one.source for each in records for one in each.given)
        return None, next((name for name in given if name in named), None)


def _placed(operation: Operation, frame: FrameType) -> Operation:
    """A statement that is run again alone does not know its function's name."""
    source = operation.source
    if source is None or operation.calls:
        return operation
    return dataclasses.replace(operation, source=dataclasses.replace(source, function=function_of(frame)))


def _evaluate(code: types.CodeType, values: dict[str, Any]) -> Any:
    """Source lines are looked for below this call."""
    return eval(code, values)  # noqa: S307  the user's own statement, which has run before
