"""Derives the text that a chat template writes around each message, by rendering marks. Pure.

A mark is a word that occurs in no template. It is rendered as a message's content: the rendering
shows the text around it, and whether the template strips the content.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import TemplateError
from engine.text.jinja_template import Message, Render

Role = Literal["system", "developer", "user", "assistant"]

_SYSTEM: Message = {"role": "system", "content": "zqsystemzq"}
_USER_1, _USER_2, _USER_3 = ({"role": "user", "content": f"zquser{n}zq"} for n in "abc")
_REPLY_1, _REPLY_2 = ({"role": "assistant", "content": f"zqreply{n}zq"} for n in "ab")
_PAD_LEFT, _PAD_RIGHT = "\n\t ", " \t\n"
# Characters that were stripped, by the remaining padding. None: all white space, as in str.strip.
_STRIPPED_LEFT: dict[str, str | None] = {"\n\t ": "", "\t ": "\n", "": None}
_STRIPPED_RIGHT: dict[str, str | None] = {" \t\n": "", " \t": "\n", "": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Text around a message, and the characters stripped from its ends ("" none, None blanks)."""

    before: str
    after: str
    left: str | None = ""
    right: str | None = ""

    def stripped(self, content: str) -> str:
        """The content as the template writes it."""
        return content.lstrip(self.left).rstrip(self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Forms of all roles. None: the template has no such message in mid-conversation."""

    user: Form
    assistant: Form
    system: Form | None
    developer: Form | None
    generation_prompt: str

    def of(self, role: Role) -> Form | None:
        """The form of a role's messages."""
        match role:
            case "user":
                return self.user
            case "assistant":
                return self.assistant
            case "system":
                return self.system
            case "developer":
                return self.developer


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Beginning of conversations. `system` is None if the template accepts no system prompt.

    `joined`: the text of the first user message follows the system prompt's `after` directly.
    """

    without_system: str
    system: Form | None
    joined: bool


def asking_when_told(render: Render, special: re.Pattern[str]) -> Render:
    """Return a render function that writes the generation prompt only on request.

    Some templates (the first of Llama 3) always write it. Then the text after a last reply is the
    reply's end and the prompt. They are split at the special token that begins a user's header.
    """
    first, _, between, _ = _around(render, [_USER_1, _REPLY_1, _USER_2])
    last = _around(render, [_USER_1, _REPLY_1])[-1]
    if between.startswith(last):
        return render
    cuts = [found.start() for found in special.finditer(between)]
    cut = next((cut for cut in cuts if cut and first.endswith(between[cut:])), None)
    if cut is None or not last.startswith(between[:cut]):
        return render  # not such a template; the derivation reports the error
    prompt = last[cut:]

    def render_on_request(messages: Sequence[Message], *, generate: bool = False) -> str:
        text = render(messages, generate=generate)
        return text if generate else text.removesuffix(prompt)

    return render_on_request


def derive_forms(render: Render, *, knows_developer: bool) -> Forms:
    """Derive the forms of messages and of the generation prompt.

    Raises:
        TemplateError: the text around a message depends on its place; the message shows both.
    """
    history = _around(render, [_USER_1, _REPLY_1, _USER_2, _REPLY_2, _USER_3])
    _same("between user and assistant", history[1], history[3])
    _same("between assistant and user", history[2], history[4])
    user_after, reply_after = history[5], _around(render, [_USER_1, _REPLY_1])[-1]
    user = Form(before=_without_start(history[2], reply_after), after=user_after)
    reply = Form(before=_without_start(history[1], user_after), after=reply_after)
    asked = render([_USER_1], generate=True)
    system = _mid_form(render, "system", user, reply)
    return Forms(
        user=_with_strips(render, user, [], _USER_1, [_REPLY_1]),
        assistant=_with_strips(render, reply, [_USER_1], _REPLY_1, [_USER_2]),
        system=system,
        developer=_mid_form(render, "developer", user, reply) if knows_developer else system,
        generation_prompt=_without_start(asked, render([_USER_1])),
    )


def derive_opening(render: Render, user: Form) -> Opening:
    """Derive the beginning of conversations, given the form of user messages.

    Raises:
        TemplateError: the first user message has another form than later ones.
    """
    before, after = _around(render, [_USER_1])
    _same("after the first and a later user message", after, user.after)
    without_system = _without_end(before, user.before)
    try:
        before, middle, after = _around(render, [_SYSTEM, _USER_1])
    except TemplateError:  # it refuses, drops or repeats a system prompt: not supported
        return Opening(without_system=without_system, system=None, joined=False)
    _same("after the first and a later user message", after, user.after)
    joined = not middle.endswith(user.before)
    form = Form(before=before, after=middle if joined else _without_end(middle, user.before))
    form = _with_strips(render, form, [], _SYSTEM, [_USER_1])
    return Opening(without_system=without_system, system=form, joined=joined)


def _mid_form(render: Render, role: Role, user: Form, reply: Form) -> Form | None:
    """The form of a system message in mid-conversation; None if the template has none."""
    before: list[Message] = [_USER_1, _REPLY_1]
    message: Message = {"role": role, "content": _SYSTEM["content"]}
    try:
        around = _around(render, [*before, message, _USER_2])
        form = Form(
            before=_without_start(around[2], reply.after),
            after=_without_end(around[3], user.before),
        )
        return _with_strips(render, form, before, message, [_USER_2])
    except TemplateError:  # it refuses, drops or moves the message: not supported
        return None


def _with_strips(
    render: Render,
    form: Form,
    before: Sequence[Message],
    message: Message,
    then: Sequence[Message],
) -> Form:
    """The form, with the characters that the template strips from the content of `message`."""
    padded = {**message, "content": f"{_PAD_LEFT}{message['content']}{_PAD_RIGHT}"}
    at = len(before)
    bare = _around(render, [*before, message, *then])
    around = _around(render, [*before, padded, *then])
    left = around[at].removeprefix(bare[at])
    right = around[at + 1].removesuffix(bare[at + 1])
    if left not in _STRIPPED_LEFT or right not in _STRIPPED_RIGHT:
        raise TemplateError(
            f"the chat template changes the whitespace around a {message['role']} message: "
            f"{padded['content']!r} becomes {left + message['content'] + right!r}"
        )
    return replace(form, left=_STRIPPED_LEFT[left], right=_STRIPPED_RIGHT[right])


def _around(render: Render, messages: Sequence[Message]) -> list[str]:
    """Texts that the template writes before, between and after the marks of `messages`."""
    rendered = rest = render(messages)
    around = []
    for message in messages:
        mark = message["content"].strip()
        text, found, rest = rest.partition(mark)
        if not found or rendered.count(mark) != 1:
            roles = ", ".join(each["role"] for each in messages)
            raise TemplateError(
                f"the chat template does not write [{roles}] once each and in this order: "
                f"{rendered!r}"
            )
        around.append(text)
    return [*around, rest]


def _same(where: str, first: str, later: str) -> None:
    if first != later:
        raise TemplateError(
            f"the chat template cannot be encoded as deltas: {where} it writes {first!r}, "
            f"then {later!r}"
        )


def _without_start(text: str, start: str) -> str:
    if not text.startswith(start):
        raise TemplateError(
            f"the chat template cannot be encoded as deltas: {text!r} does not begin with {start!r}"
        )
    return text[len(start) :]


def _without_end(text: str, end: str) -> str:
    if not text.endswith(end):
        raise TemplateError(
            f"the chat template cannot be encoded as deltas: {text!r} does not end with {end!r}"
        )
    return text[: len(text) - len(end)]
