"""Conversations as text, by a Jinja template."""

from __future__ import annotations

from pathlib import Path

from megatron_rl.config import Problem, UserError
from megatron_rl.data.formats import Row

DEFAULT_TEMPLATE = """\
{% for message in messages %}
{{ message.role }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}
assistant:
{%- endif %}
"""


class TemplateError(ValueError):
    """A conversation that the template does not take."""


class ChatTemplate:
    """The template of the file `path`, or without one, a line `role: content` for each turn.

    A template reads `messages` and `add_generation_prompt` (true), and may call `raise_exception(message)`.
    `bos_token` and `eos_token` are empty: special tokens are the tokenizer's to add.

    Raises:
        UserError: the file cannot be read, or is no Jinja template.
    """

    def __init__(self, path: str | None = None):
        # rows without messages do without Jinja
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        try:
            source = DEFAULT_TEMPLATE if path is None else Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot be read ({getattr(error, 'strerror', None) or error})"
            raise UserError("data", [Problem("--chat-template", message, path)]) from None
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals |= {"raise_exception": _refuse, "bos_token": "", "eos_token": ""}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            message = f"line {getattr(error, 'lineno', '?')} is no Jinja ({error})"
            raise UserError("data", [Problem("--chat-template", message, path)]) from None

    def prompt(self, messages: list[Row]) -> str:
        """The text of the turns, and the beginning of the assistant's.

        Raises:
            TemplateError: the template fails on them, or refuses them.
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=True)
        except Exception as error:  # a template can fail in any way that an expression can
            raise TemplateError(str(error)) from None


def _refuse(message: str) -> None:
    raise TemplateError(message)
