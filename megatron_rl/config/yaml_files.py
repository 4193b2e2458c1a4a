"""YAML as people mean it: `1e-6` is a number, and a key given twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from megatron_rl.config.problems import Problem, UserError


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-6 as text for want of a dot."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for name, _ in node.value:
            if name.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name.value!r} is given twice", name.start_mark
                )
            seen.add(name.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_scalar(text: str) -> Any:
    """The value that `text` would have in a YAML file; text that is no YAML scalar stays text."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text
    return text if isinstance(value, (dict, list)) else value


def read_sections(path: str) -> dict[str, dict[str, Any]]:
    """The sections of a run file.

    Raises:
        UserError: the file cannot be read, is not YAML, or is not a mapping of sections.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise UserError("configuration", [Problem("--config", error.strerror or str(error), path)]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError("configuration", [Problem(path, " ".join(str(error).split()))]) from None
    content = {} if content is None else content
    wrong = [] if isinstance(content, dict) else [Problem(path, "must be a mapping of sections")]
    if not wrong:
        wrong = [
            Problem(f"{path}: {name}", "must be a section, that is a mapping of keys", repr(section))
            for name, section in content.items()
            if not isinstance(section, dict)
        ]
    if wrong:
        raise UserError("configuration", wrong)
    return content
