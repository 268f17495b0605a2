"""A model's chat template, rendered in a sandbox. The caller provides the time."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

import jinja2

from engine.errors import TemplateError
from engine.files.gguf_header import read_gguf_header
from engine.text.folder_vocabulary import read_json
from engine.text.template_bounds import BoundedEnvironment

Message = Mapping[str, str]
_LONGEST_REASON = 500


class Render(Protocol):
    """Renders messages to text."""

    def __call__(self, messages: Sequence[Message], *, generate: bool = False) -> str:
        """The text of a conversation, with the generation prompt if `generate`.

        Raises:
            TemplateError: the template refuses these messages, or fails.
        """
        ...


class JinjaTemplate:
    """Renders messages (`role`, `content`) in the model's training format.

    As in transformers' `apply_chat_template`, a template may use `bos_token`, `eos_token`,
    `add_generation_prompt`, `raise_exception`, `strftime_now` and `tojson` besides the messages.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._environment = BoundedEnvironment({"raise_exception": _refuse})
            self._template = self._environment.compiled(source)
        except Exception as error:  # deep nesting, long numbers: the compilers fail in many ways
            raise TemplateError(
                f"the chat template cannot be compiled: {_reason(error)}"
            ) from error

    def at(self, now: datetime) -> Render:
        """Return the render function at a fixed time."""
        return partial(self._render, now)

    def _render(self, now: datetime, messages: Sequence[Message], *, generate: bool = False) -> str:
        try:
            return self._environment.render(
                self._template,
                now,
                messages=[dict(message) for message in messages],
                add_generation_prompt=generate,
                tools=None,
                **self._tokens,
            )
        except Exception as error:  # the template is untrusted code and may fail in any way
            roles = ", ".join(message["role"] for message in messages)
            raise TemplateError(f"the chat template rejects [{roles}]: {_reason(error)}") from error


def read_template_source(path: Path) -> str:
    """The chat template of a GGUF file or a Hugging Face folder.

    Raises:
        TemplateError: the model has none (base models do not).
        ModelFileError: the file is damaged.
    """
    source = _folder_source(path) if path.is_dir() else _gguf_source(path)
    if not source:
        raise TemplateError(
            f"{path}: the model has no chat template; conversations need an instruct or chat model"
        )
    return source


def _gguf_source(path: Path) -> str | None:
    source = read_gguf_header(path).metadata.get("tokenizer.chat_template")
    return source if isinstance(source, str) else None


def _folder_source(folder: Path) -> str | None:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    listed = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(listed, list):  # named templates; "default" is the one for plain chat
        listed = next((entry["template"] for entry in listed if entry["name"] == "default"), None)
    return listed if isinstance(listed, str) else None


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_LONGEST_REASON]
