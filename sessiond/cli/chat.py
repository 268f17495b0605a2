"""`sessiond chat`: a conversation in the terminal, or from a script."""

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated

import typer

from sessiond.cli.ask_server import DEFAULT_URL, KeyOption, UrlOption, hint_for, utf8
from sessiond.cli.chat_client import ChatClient, TurnOptions
from sessiond.cli.chat_screen import Screen
from sessiond.cli.chat_turn import Notice, ReplyText, TurnEnd
from sessiond.cli.keyboard import InputError, Keyboard
from sessiond.cli.server_api import ServerAddress, ServerApi, ServerError


def read_policy(words: Sequence[str]) -> dict[str, int | float | str]:
    """Parse `last_turns turns=30 fidelity=shifted` to a body of `PUT .../policy`.

    Raises:
        ValueError: an argument is not `name=value`; the message names it.
    """
    name, *pairs = words
    policy: dict[str, int | float | str] = {"type": name}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals or not value:
            raise ValueError(f"an argument must be name=value, as in turns=30 (got {pair})")
        policy[key] = _number(value)
    return policy


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_COMMANDS = {
    "/cancel": "stop the current reply (like Ctrl-C)",
    "/fork": "continue in a copy; the original conversation stays unchanged under its id",
    "/inspect": "show this conversation's memory on the server",
    "/policy": "show the context policy, or set it: /policy last_turns turns=30 "
    "fidelity=shifted; /policy default uses the server's",
    "/reset": "empty the conversation but keep the system prompt",
    "/help": "show this list",
    "/quit": "leave (like Ctrl-D or Ctrl-C twice); what is typed during a reply is sent after it",
}
_KEYS = (
    "Alt-Enter (or Esc, Enter) begins a new line; a pasted text is one message. "
    "Tab completes a command; the arrow keys bring back earlier messages."
)


def chat(  # noqa: PLR0913, PLR0917 -- one parameter per option
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    system: Annotated[
        str | None, typer.Option(callback=utf8, help="System prompt of the conversation.")
    ] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum reply length in tokens.")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0, max=2.0, help="Sampling temperature; 0 is greedy. The API's default is 1."
        ),
    ] = 0.2,
    conversation: Annotated[
        str | None,
        typer.Option(callback=utf8, help="Id of a conversation to continue (conv_...)."),
    ] = None,
    once: Annotated[
        str | None,
        typer.Option(callback=utf8, help="Send one message, print the reply, exit."),
    ] = None,
) -> None:
    """Chat with a running server.

    Piped lines are sent one after the other. Replies go to standard output, statistics and notices
    to standard error; the exit code is 1 if a turn failed.
    """
    try:
        address = ServerAddress.parse(url, api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    options = TurnOptions(
        instructions=system, max_output_tokens=max_output_tokens, temperature=temperature
    )
    keyboard = Keyboard(tuple(_COMMANDS))
    screen = Screen(interactive=keyboard.interactive and once is None)
    client = ChatClient(address, options, session_id=conversation)
    session = ChatSession(client, ServerApi(address), screen, keyboard)
    raise typer.Exit(_converse(client, session, screen, once))


def _converse(client: ChatClient, session: "ChatSession", screen: Screen, once: str | None) -> int:
    """Connect and run the chat; returns the exit code."""
    try:
        client.connect()
        good = session.run_once(once) if once is not None else session.run()
    except ServerError as error:
        screen.problem(f"{error}{hint_for(error)}")
        return 1
    except InputError as error:
        screen.problem(f"sessiond: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        client.close()
        if once is None and client.session_id is not None:
            screen.remark(f"To continue this conversation: --conversation {client.session_id}")
    return 0 if good else 1


class ChatSession:
    """Runs lines of input as messages or commands until the end of input."""

    def __init__(
        self, client: ChatClient, api: ServerApi, screen: Screen, keyboard: Keyboard
    ) -> None:
        self._client = client
        self._api = api
        self._screen = screen
        self._keyboard = keyboard
        self._commands: dict[str, Callable[[], None]] = {
            "/cancel": self._cancel,
            "/fork": self._fork,
            "/inspect": self._inspect,
            "/reset": self._reset,
            "/help": self._help,
        }

    def run(self) -> bool:
        """Read and run messages and commands until the end of input or `/quit`.

        Returns:
            False if a turn failed in a script.
        """
        interactive = self._keyboard.interactive
        self._greet()
        all_good = True
        while (text := self._keyboard.read_message("> ")) is not None:
            if text.strip() == "/quit":
                break
            if text.startswith("/") and "\n" not in text.strip():
                self._command(text.strip())
            elif text.strip():
                all_good &= self.run_once(text)
        return all_good or interactive

    def run_once(self, text: str) -> bool:
        """Run one turn and show it. Returns whether it produced a reply."""
        good = False
        with self._keyboard.streaming():
            for part in self._client.ask(text, cancel_wanted=self._keyboard.cancel_wanted):
                match part:
                    case ReplyText():
                        self._screen.reply(part.text)
                    case Notice():
                        self._screen.remark(f"[{part.text}]")
                    case TurnEnd():
                        self._screen.turn_end(part)
                        good = part.outcome in ("completed", "incomplete")
        return good

    def _greet(self) -> None:
        if self._client.session_id is not None:
            self._screen.session(self._api.session(self._client.session_id))
        if self._keyboard.interactive:
            self._screen.remark(
                f"Chat with {self._api.model()}. Ctrl-C stops a reply, /help lists the commands."
            )

    def _command(self, line: str) -> None:
        name, *words = line.split()
        run = self._commands.get(line)
        if name == "/policy":
            run = partial(self._policy, words)
        if run is None:
            known = ", ".join(_COMMANDS)
            self._screen.problem(
                f"A command must be one of {known} (got {line}). "
                "A line that begins with a space is sent as a message."
            )
            return
        try:
            run()
        except ServerError as error:
            self._screen.problem(str(error))

    def _cancel(self) -> None:
        self._screen.remark("No reply is streaming, so there is nothing to cancel.")

    def _help(self) -> None:
        for name, meaning in _COMMANDS.items():
            self._screen.remark(f"{name:10}{meaning}")
        self._screen.remark(_KEYS)

    def _fork(self) -> None:
        if (session_id := self._session()) is not None:
            fork = str(self._api.fork(session_id)["id"])
            self._client.restart(fork)
            self._screen.remark(f"You are now in {fork}; {session_id} is unchanged.")

    def _inspect(self) -> None:
        if (session_id := self._session()) is not None:
            self._screen.session(self._api.session(session_id))

    def _policy(self, words: Sequence[str]) -> None:
        if (session_id := self._session()) is None:
            return
        if not words:
            session = self._api.session(session_id)
        elif list(words) == ["default"]:
            session = self._api.clear_policy(session_id)
        else:
            try:
                policy = read_policy(words)
            except ValueError as error:
                self._screen.problem(str(error))
                return
            session = self._api.set_policy(session_id, policy)
        # the fidelity of the KV changes only when the policy drops turns
        self._screen.remark(f"policy {session.get('policy')}, KV so far {session.get('fidelity')}")

    def _session(self) -> str | None:
        if self._client.session_id is None:
            self._screen.remark("There is no conversation yet: send a message first.")
        return self._client.session_id

    def _reset(self) -> None:
        if (session_id := self._client.session_id) is not None:
            try:
                self._api.reset(session_id)
            except ServerError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                session_id = None  # the server no longer has it: the next turn opens a new one
            self._client.restart(session_id)
        self._screen.remark("The conversation is empty.")
