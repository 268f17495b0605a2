"""Encodes a conversation as deltas, in the form of the model's own chat template. Immutable.

A turn's text is encoded alone, so that nothing that is already in KV is tokenised again. Users'
text never passes through the template: at load the template renders marks, and the text around them
becomes the form of each message. Text is split at added tokens only. All text between two of them
(header and content together) is one `encode`, so that the ids equal those of the whole rendering.
Added tokens are recognised in the template's own text, never in a message's.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

from engine.errors import TemplateError
from engine.text.jinja_template import JinjaTemplate, Message, Render, read_template_source
from engine.text.template_forms import (
    Form,
    Opening,
    Role,
    asking_when_told,
    derive_forms,
    derive_opening,
)
from engine.text.tokenizer import Tokenizer

# Checked at load against the whole rendering: blanks at edges, lines, digits, markup, scripts.
_SYSTEM: Message = {"role": "system", "content": "Answer in 2 lines.\n\n- Be brief."}
_USER: Message = {"role": "user", "content": '  1 + 1 = <b>"2"</b> &amp; {{ x }}?\n\n '}
# First characters of texts: ids that all of them have in common belong to the template.
_FIRST_CHARACTERS = ("a", "W", "é", "大", "7", "<", '"', "-")
_ASSISTANT: Message = {"role": "assistant", "content": "Sì, 大丈夫 🦙:\n\n\tyes."}


class ChatFormat:
    """The form of one model's conversations.

    A conversation is `open(...)`, then `message(...)` for each message, then `generation_prompt`,
    the reply's ids, `close_ids`, and so on. Some templates are not stable under appending: they
    strip thinking from earlier replies, or move the system prompt. Deltas equal those templates'
    rendering of a first prompt; later turns keep the same forms.

    Args:
        template: the model's template.
        tokenizer: the model's tokenizer.
        clock: read at load and once per `open`, for templates that write the date.

    Raises:
        TemplateError: no deltas can be derived, or they differ from the template's own rendering.
    """

    def __init__(
        self, template: JinjaTemplate, tokenizer: Tokenizer, clock: Callable[[], datetime]
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._clock = clock
        names = sorted(tokenizer.special_names, key=len, reverse=True)
        self._special = re.compile("(" + ("|".join(map(re.escape, names)) or "(?!)") + ")")
        render = asking_when_told(template.at(clock()), self._special)
        self._forms = derive_forms(render, knows_developer="developer" in template.source)
        self._opening = derive_opening(render, self._forms.user)
        self._generation_prompt = self._encode(_Trusted(self._forms.generation_prompt))
        self._close = self._encode(_Trusted(self._forms.assistant.after))
        closing = self._special.search(self._forms.assistant.after)
        ends = [tokenizer.special_id(closing.group())] if closing else []
        self._stop = list(dict.fromkeys([*ends, *tokenizer.stop_ids]))
        self._check(render)
        starts = [self.message("user", text) for text in _FIRST_CHARACTERS]
        same = takewhile(lambda ids: len(set(ids)) == 1, zip(*starts, strict=False))
        self._user_start = [ids[0] for ids in same]

    @property
    def generation_prompt(self) -> list[int]:
        """Ids that request a reply (`<|im_start|>assistant`, newline)."""
        return list(self._generation_prompt)

    @property
    def close_ids(self) -> list[int]:
        """Ids that follow a reply (`<|im_end|>`, newline)."""
        return list(self._close)

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a reply; they are not part of it."""
        return list(self._stop)

    @property
    def user_start(self) -> list[int]:
        """First ids of every user message (`<|im_start|>user`, newline), whatever its text.

        Approximate: a text that begins with a blank may merge with the last id.
        """
        return list(self._user_start)

    @property
    def system_joins_first_message(self) -> bool:
        """Whether a system prompt is written into the first user message (Mistral).

        Then `open` accepts none: use `open_joined`.
        """
        return self._opening.joined

    def open(self, system: str | None = None) -> list[int]:
        """First ids of a conversation: BOS, and the given or the template's own system prompt.

        Raises:
            TemplateError: the template has no separate place for a system prompt.
        """
        opening = self._opening_now()
        if system is None:
            return self._encode(_Trusted(opening.without_system))
        if opening.system is None:
            raise TemplateError("this model's chat template does not support a system prompt")
        if opening.joined:
            raise TemplateError(
                "this model's chat template writes the system prompt into the first user message; "
                "there is no form for it alone"
            )
        return self._encode(*_filled(opening.system, system))

    def open_joined(self, system: str, text: str) -> list[int]:
        """First ids of a conversation: the system prompt and the first user message in one.

        Raises:
            TemplateError: the template separates them (see `system_joins_first_message`).
        """
        opening, user = self._opening_now(), self._forms.user
        if opening.system is None or not opening.joined:
            raise TemplateError("this model's chat template does not join the system prompt")
        start = _filled(opening.system, system)
        return self._encode(*start, user.stripped(text), _Trusted(user.after))

    def message(self, role: Role, text: str) -> list[int]:
        """Ids of a whole message, with its end.

        Raises:
            TemplateError: the template has no such message (a system prompt in mid-conversation).
        """
        form = self._forms.of(role)
        if form is None:
            raise TemplateError(
                f"this model's chat template does not support a {role} message "
                "in the middle of a conversation"
            )
        return self._encode(*_filled(form, text))

    def _opening_now(self) -> Opening:
        if "strftime_now" in self._template.source:
            render = asking_when_told(self._template.at(self._clock()), self._special)
            return derive_opening(render, self._forms.user)
        return self._opening

    def _encode(self, *pieces: str) -> list[int]:
        """Ids of consecutive pieces: added tokens are recognised in `_Trusted` ones only."""
        ids: list[int] = []
        run = ""  # all text since the last added token: one `encode`, as for the whole text
        for piece in pieces:
            if not isinstance(piece, _Trusted):
                run += piece
                continue
            before, *specials = self._special.split(piece)
            run += before
            for name, after in zip(specials[::2], specials[1::2], strict=True):
                ids += [*self._encode_run(run), self._tokenizer.special_id(name)]
                run = after
        return ids + self._encode_run(run)

    def _encode_run(self, text: str) -> list[int]:
        return self._tokenizer.encode(text) if text else []

    def _check(self, render: Render) -> None:
        """Compare deltas with the template's rendering of short conversations."""
        prompts: list[list[Message]] = [[_USER], [_USER, _ASSISTANT, _USER]]
        if self._opening.system is not None:
            prompts.append([_SYSTEM, _USER])
            if not self._opening.joined:  # joined templates may move it to a later message
                prompts.append([_SYSTEM, _USER, _ASSISTANT, _USER])
        for prompt in prompts:
            whole = render(prompt, generate=True)
            expected, got = self._tokenizer.parse(whole), self._as_deltas(prompt)
            if got != expected:
                roles = ", ".join(message["role"] for message in prompt)
                raise TemplateError(
                    f"the chat template cannot be encoded as deltas: [{roles}] is {whole!r} with "
                    f"ids {expected}, but its deltas have {got}"
                )

    def _as_deltas(self, prompt: Sequence[Message]) -> list[int]:
        first, *rest = prompt
        if first["role"] != "system":
            ids, rest = self.open(), list(prompt)
        elif self._opening.joined:
            ids = self.open_joined(first["content"], rest.pop(0)["content"])
        else:
            ids = self.open(first["content"])
        for message in rest:
            role: Role = "user" if message["role"] == "user" else "assistant"
            ids += self.message(role, message["content"])
        return ids + self._generation_prompt


class _Trusted(str):
    """Text of the template, in which added tokens are recognised."""

    __slots__ = ()


def load_chat_format(
    path: Path, tokenizer: Tokenizer, clock: Callable[[], datetime] | None = None
) -> ChatFormat:
    """The chat format of a GGUF file or a Hugging Face folder.

    Args:
        path: the file or folder that `tokenizer` was loaded from.
        tokenizer: the model's tokenizer.
        clock: local time, for templates that write the date; the machine's by default.

    Raises:
        TemplateError: the model has no chat template, or no deltas can be derived from it.
        ModelFileError: the file is damaged.
    """
    name_of = tokenizer.special_name
    template = JinjaTemplate(
        read_template_source(path),
        bos_token="" if tokenizer.bos_id is None else name_of(tokenizer.bos_id) or "",
        eos_token="" if tokenizer.eos_id is None else name_of(tokenizer.eos_id) or "",
    )
    return ChatFormat(template, tokenizer, clock or _local_time)


def _local_time() -> datetime:
    return datetime.now(tz=UTC).astimezone()


def _filled(form: Form, text: str) -> tuple[str, str, str]:
    return _Trusted(form.before), form.stripped(text), _Trusted(form.after)
