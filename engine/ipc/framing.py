"""Length-prefixed frames on a byte stream, and their messages. No I/O.

A frame is a big-endian 32-bit length, then that many bytes of MessagePack.
"""

import signal
import struct
from collections.abc import Iterator
from typing import Generic, Literal, TypeVar

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.ipc.messages import Command, EngineInfo, TurnEvent
from engine.ipc.queries import Query, QueryResult

MAX_FRAME_BYTES = 64 * 2**20  # the ids of a 1M-token context take 5 MiB
STACKS_SIGNAL = signal.SIGUSR1
"""Makes an engine's process print the stacks of its threads."""

_LENGTH = struct.Struct(">I")


class FrameError(EngineError):
    """The byte stream holds no valid frame: the other side is broken."""


# --- to the engine: first `Launch`, then commands and queries, in order --------------------------


class Launch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start an engine. `loop_factory` ("module:function") replaces the model in tests."""

    config: EngineConfig
    loop_factory: str = ""


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A query; its answer carries the same number."""

    number: int
    query: Query


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answered by `Pong` as soon as no step runs: an engine that does not answer hangs."""


EngineInput = Command | Ask
ToWorker = Launch | Ping | EngineInput

# --- from the engine: `Progress`, then `Ready` or `Refused`, then batches and `Pong`s ------------


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Progress of the starting engine, as text."""

    text: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine accepts commands."""

    info: EngineInfo


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine can't start. `setting`, `value` and `allowed` describe an invalid setting."""

    kind: Literal["setting", "model_file", "template", "other"]
    message: str
    setting: str = ""
    value: str = ""
    allowed: str = ""


class QueryDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to the query of this number."""

    number: int
    answer: QueryResult


EngineOutput = TurnEvent | QueryDone


class OutputBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All output of one step: one frame, one write, one wake-up."""

    outputs: list[EngineOutput]


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No step is running."""


FromWorker = Progress | Ready | Refused | OutputBatch | Pong

Said = TypeVar("Said")

_encoder = msgspec.msgpack.Encoder()


def encode(message: ToWorker | FromWorker) -> bytes:
    """One frame.

    Raises:
        FrameError: it would be larger than `MAX_FRAME_BYTES`.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame must be at most {MAX_FRAME_BYTES} bytes (got {len(body)})")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[Said]):
    """Splits a byte stream into messages of one direction."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[Said]") -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Said]:
        """Yield every message that `data` completes.

        Raises:
            FrameError: a frame is too large or does not decode.
        """
        self._buffer += data
        while (body := self._cut()) is not None:
            try:
                message = self._decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise FrameError(f"a frame cannot be decoded: {error}") from error
            yield message

    def _cut(self) -> bytes | None:
        """Remove the next complete frame's body from the buffer; None when there is none yet."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"frame must be at most {MAX_FRAME_BYTES} bytes (got {length})")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body


def read_to_worker() -> FrameReader[ToWorker]:
    """Reader for the engine's side."""
    return FrameReader(msgspec.msgpack.Decoder(ToWorker))


def read_from_worker() -> FrameReader[FromWorker]:
    """Reader for the gateway's side."""
    return FrameReader(msgspec.msgpack.Decoder(FromWorker))
