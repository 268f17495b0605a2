"""A server that plays scripted frames, for tests of clients. It knows nothing of sessiond."""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

Frame = dict[str, Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What follows one `response.create`: frames, then perhaps a close, or a wait for a cancel."""

    frames: Sequence[Frame] = ()
    close_code: int | None = None
    after_cancel: Sequence[Frame] = ()


@dataclass
class ScriptedServer:
    """Plays `plays` in order, over however many connections. `received` holds every message."""

    plays: list[Play]
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    received: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    @contextlib.contextmanager
    def running(self) -> Iterator["ScriptedServer"]:
        """Listen on a free port of 127.0.0.1."""
        with serve(
            self._talk,
            "127.0.0.1",
            0,
            process_request=self._answer,
            compression=None,
            close_timeout=0.1,  # clients under test may be gone without a word
        ) as server:
            self.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    @property
    def creates(self) -> list[dict[str, Any]]:
        """The `response.create` messages."""
        return [message for message in self.received if message["type"] == "response.create"]

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/v1/responses":
            return None
        status, body = self.answers.get(("GET", request.path), (404, {}))
        return connection.respond(HTTPStatus(status), json.dumps(body))

    def _talk(self, connection: ServerConnection) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionClosed):
            for message in connection:
                self.received.append(json.loads(message))
                if self.received[-1]["type"] != "response.create":
                    continue
                play = self.plays.pop(0)
                self._play(connection, play)
                if play.close_code is not None:
                    connection.close(play.close_code)
                    return  # what came meanwhile was never taken

    def _play(self, connection: ServerConnection, play: Play) -> None:
        for frame in play.frames:
            connection.send(frame if isinstance(frame, str) else json.dumps(frame))
        if play.after_cancel:
            self.received.append(json.loads(connection.recv(timeout=60)))
            for frame in play.after_cancel:
                connection.send(json.dumps(frame))


def reply(
    text: str,
    *,
    response_id: str = "resp_1",
    session_id: str = "conv_1",
    cached: int = 0,
    inputs: int = 10,
    outputs: int = 5,
    status: str = "completed",
    **fields: Any,
) -> list[Frame]:
    """The frames of a whole turn, one delta per word."""
    head = {"id": response_id, "conversation": {"id": session_id}}
    deltas = [
        {"type": "response.output_text.delta", "delta": word}
        for word in text.replace(" ", "\0 ").split("\0")
    ]
    usage = {
        "input_tokens": inputs,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": outputs,
    }
    done = {"type": f"response.{status}", "response": head | {"usage": usage} | fields}
    return [{"type": "response.created", "response": head}, *deltas, done]
