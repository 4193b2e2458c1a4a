"""From a command line and a YAML file to a checked `RunConfig`, or to everything that is wrong with them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from megatron_rl.config.flags import closest, flag_of, parse_flags
from megatron_rl.config.problems import Problem, UserError
from megatron_rl.config.rules import findings
from megatron_rl.config.sections import SECTIONS, RunConfig, Section
from megatron_rl.config.versions import version_problems
from megatron_rl.config.yaml_files import read_sections
from megatron_rl.losses import options_of, policy_loss_class, policy_loss_names


@dataclass(frozen=True)
class _Given:
    value: Any
    where: str


def load_config(argv: list[str], *, default_config: str | Path, world_size: int | None = None) -> RunConfig:
    """The configuration of a run.

    Args:
        argv: the command line without the program's name.
        default_config: the run file if there is no `--config`.
        world_size: number of processes; by default what torchrun says, else 1.

    Raises:
        UserError: with every problem at once.
        SystemExit: status 0, after `--help`.
    """
    config_path, flags, problems = parse_flags(argv)
    given, problems_of_file, file_read = _from_file(str(config_path or default_config))
    problems += problems_of_file + version_problems()
    file_loss = given["loss_mode"].value if "loss_mode" in given else SECTIONS["loss"].model_fields["loss_mode"].default
    for key in _replaced_by(flags, file_loss):
        given.pop(key, None)
    given |= {key: _Given(value, flag_of(key)) for key, value in flags.items()}

    values: dict[str, Any] = {"world_size": world_size or int(os.environ.get("WORLD_SIZE", "1"))}
    for section in SECTIONS.values():
        for key, field in section.model_fields.items():
            if key in given:
                problems += _validate(section, key, given[key], values)
            elif field.is_required():
                if file_read:
                    problems.append(Problem(flag_of(key), "is required"))
            else:
                values[key] = field.get_default(call_default_factory=True)
    for key, message in findings(values):
        source = given.get(key)
        if source is None and not file_read:
            continue  # the file may well have said it
        shown = values.get(key) if source is None else source.value
        problems.append(
            Problem(source.where if source else flag_of(key), message, None if shown is None else repr(shown))
        )
    if problems:
        raise UserError("configuration", problems)
    return RunConfig(
        **{
            name: section.model_construct(**{key: values[key] for key in section.model_fields})
            for name, section in SECTIONS.items()
        }
    )


def _replaced_by(flags: dict[str, Any], file_loss: Any) -> set[str]:
    """Keys of the file that a flag puts aside although it has another name.

    The file's options belong to the file's loss: another loss chosen on the command line comes without them. Of
    two keys that exclude each other, the one on the command line goes before the one in the file.
    """
    replaced = set()
    for one, other in (("train_iters", "epochs"), ("truncate", "drop_long")):
        replaced |= {other} if one in flags else set()
        replaced |= {one} if other in flags else set()
    if flags.get("loss_mode", file_loss) != file_loss:
        for name in policy_loss_names():
            replaced |= {f.metadata["flag"] for f in options_of(policy_loss_class(name))}
    return replaced


def _from_file(path: str) -> tuple[dict[str, _Given], list[Problem], bool]:
    """The keys of a run file, what is wrong with it, and whether it could be read at all."""
    given, problems = {}, []
    home = {key: name for name, section in SECTIONS.items() for key in section.model_fields}
    try:
        sections = read_sections(path)
    except UserError as error:
        return given, error.problems, False
    for name, content in sections.items():
        if name not in SECTIONS:
            problems.append(Problem(f"{path}: {name}", "unknown section" + closest(str(name), list(SECTIONS))))
            continue
        for key, value in content.items():
            where = f"{path}: {name}.{key}"
            if home.get(key) == name:
                given[key] = _Given(value, where)
            elif key in home:
                problems.append(Problem(where, f"belongs into section {home[key]}"))
            else:
                problems.append(Problem(where, "unknown key" + closest(str(key), list(home))))
    return given, problems, True


def _validate(section: type[Section], key: str, given: _Given, values: dict[str, Any]) -> list[Problem]:
    """Check one key by its type; a valid value is added to `values`."""
    field = section.model_fields[key]
    field_type = TypeAdapter(Annotated[field.annotation, field], config=ConfigDict(strict=True))
    try:
        values[key] = field_type.validate_python(given.value)
    except ValidationError as error:
        messages = dict.fromkeys(_plain(e["msg"]) for e in error.errors())
        return [Problem(given.where, "; ".join(messages), repr(given.value))]
    return []


def _plain(message: str) -> str:
    for theirs, ours in (
        ("Input should be", "must be"),
        ("List should have at least 1 item after validation, not 0", "must name at least one file"),
        ("a valid integer", "a whole number"),
        ("a valid number", "a finite number"),
        ("a valid ", "a "),
    ):
        message = message.replace(theirs, ours)
    return message


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML for `--config`.

    The run folder is left out, so that running it again makes a new one.
    """
    content = {name: dict(section) for name, section in config}
    content["checkpoint"] = {k: v for k, v in content["checkpoint"].items() if k != "run_dir"}
    content["loss"] = {k: v for k, v in content["loss"].items() if v is not None}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
