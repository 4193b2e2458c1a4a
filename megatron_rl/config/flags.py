"""The command line: a flag for every key of the schema, under the heading of its section."""

from __future__ import annotations

import argparse
import difflib
import types
import typing
from typing import Any

from pydantic.fields import FieldInfo

from megatron_rl.config.problems import Problem
from megatron_rl.config.sections import SECTIONS
from megatron_rl.config.yaml_files import parse_scalar

_NO_VALUE = object()


def flag_of(key: str) -> str:
    """`dro_beta` -> `--dro-beta`."""
    return "--" + key.replace("_", "-")


def closest(name: str, known: list[str]) -> str:
    """A hint at the closest known name, or nothing."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def _kinds(annotation: Any) -> set[Any]:
    """The plain types inside an annotation: {int}, {str, list}, ..."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return set().union(*(_kinds(part) for part in typing.get_args(annotation)))
    if origin is list:
        return {list} | _kinds(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return {str}
    return {annotation}


def _type_name(field: FieldInfo) -> str:
    annotation = field.annotation
    choices = [part for part in (annotation, *typing.get_args(annotation)) if typing.get_origin(part) is typing.Literal]
    if choices:
        return "|".join(typing.get_args(choices[0]))
    kinds = _kinds(annotation) - {types.NoneType, list}
    return "value" if Any in kinds else "/".join(sorted(kind.__name__ for kind in kinds))


class _HelpFormatter(argparse.HelpFormatter):
    """Values are optional to argparse, so that a missing one can be reported with all other problems."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return super()._format_args(action, default_metavar).strip("[]")


def build_parser() -> argparse.ArgumentParser:
    """The parser of a run's command line; `--help` is grouped by section."""
    parser = argparse.ArgumentParser(
        prog="pretrain_rl.py",
        usage="torchrun --nproc-per-node N launch/pretrain_rl.py [--config FILE] [flags]",
        description="Train a language model on graded completions with Megatron-Core.",
        epilog="The command line goes before the file, the file before the defaults.",
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of the run (default: configs/quickstart.yaml)")
    for name, section in SECTIONS.items():
        group = parser.add_argument_group(name, section.__doc__.splitlines()[0])
        for key, field in section.model_fields.items():
            _add_flag(group, key, field)
    return parser


def _add_flag(group: Any, key: str, field: FieldInfo) -> None:
    help = field.description.replace("%", "%%")
    if not field.is_required() and field.default not in (None, False, []):
        help += f" (default: {field.default})"
    common = {"dest": key, "default": argparse.SUPPRESS}
    kinds = _kinds(field.annotation)
    if bool in kinds:
        group.add_argument(flag_of(key), nargs="?", const=True, metavar="true|false", help=help, **common)
        group.add_argument(
            "--no-" + flag_of(key)[2:], action="store_const", const=False, help=argparse.SUPPRESS, **common
        )
    elif list in kinds:
        group.add_argument(
            flag_of(key), nargs="*", metavar="FILE" if key.endswith("_data") else "VALUE", help=help, **common
        )
    else:
        group.add_argument(flag_of(key), nargs="?", const=_NO_VALUE, metavar=_type_name(field), help=help, **common)


def parse_flags(argv: list[str]) -> tuple[str | None, dict[str, Any], list[Problem]]:
    """Read a command line.

    Returns:
        the value of `--config` or None, the given keys with values typed as YAML would type them, and what
        was wrong with the flags themselves.
    """
    parser = build_parser()
    known = list(parser._option_string_actions)
    spelled = [
        "--" + head[2:].replace("_", "-") + tail if head.startswith("--") else head + tail
        for head, tail in ((t.partition("=")[0], "".join(t.partition("=")[1:])) for t in argv)
    ]
    given, unknown = parser.parse_known_args(spelled)
    values = vars(given)
    problems = []
    takes_value = False
    for token in unknown:
        is_flag = token.startswith("-")
        if is_flag:
            name = token.partition("=")[0]
            problems.append(Problem(name, "unknown flag" + closest(name, known)))
        elif not takes_value:
            problems.append(Problem(repr(token), "unexpected argument; values follow a --flag"))
        takes_value = is_flag and "=" not in token
    config = values.pop("config", None)
    text_keys = {k for s in SECTIONS.values() for k, f in s.model_fields.items() if str in _kinds(f.annotation)}
    for key, value in list(values.items()):
        if value is _NO_VALUE:
            problems.append(Problem(flag_of(key), "needs a value"))
            del values[key]
        elif isinstance(value, str) and key not in text_keys:
            values[key] = parse_scalar(value)
    return config, values, problems
