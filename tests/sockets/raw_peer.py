"""A peer that sends any bytes after a proper handshake, and reads whole frames."""

import asyncio
import contextlib
import socket
import sys

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

MASK = bytes([0x37, 0xFA, 0x21, 0x3D])
WITHIN_S = 60


def frame(opcode, payload=b"", *, fin=True, rsv=0, masked=True, length=None):
    """The bytes of one frame, right or wrong (RFC 6455, section 5.2); `length`: what it claims."""
    size = len(payload) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | opcode])
    if size < 126:
        head += bytes([masked << 7 | size])
    elif size < 2**16:
        head += bytes([masked << 7 | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([masked << 7 | 127]) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))


def close(code, reason=b""):
    """The bytes of a close frame."""
    return frame(Opcode.CLOSE, code.to_bytes(2, "big") + reason)


class RawPeer:
    """See the module's docstring. Answers pings, but only while it reads."""

    def __init__(self, reader, writer, client):
        self._reader = reader
        self._client = client
        self._frames = []
        self.writer = writer

    def send(self, *data):
        self.writer.writelines(data)

    async def next(self):
        """The next frame; None: the connection has ended."""
        while not self._frames:
            try:
                data = await asyncio.wait_for(self._reader.read(2**16), WITHIN_S)
            except ConnectionError:  # the server left something unread, or reads no more
                return None
            if not data:
                return None
            self._client.receive_data(data)
            events = self._client.events_received()
            self._frames += [event for event in events if isinstance(event, Frame)]
        found = self._frames.pop(0)
        if found.opcode is Opcode.PING:
            self.send(frame(Opcode.PONG, bytes(found.data)))
        return found

    async def close_code(self):
        """Read to the close frame, answer it, read to the end.

        None: it has no code; 1006: there is none.
        """
        while (found := await self.next()) is not None:
            if found.opcode is Opcode.CLOSE:
                self.send(frame(Opcode.CLOSE, bytes(found.data)))
                assert await self.next() is None, "frames after the close"
                return int.from_bytes(found.data[:2], "big") if found.data else None
        return 1006

    async def end_without_answers(self):
        """Wait for the connection's end, and answer nothing meanwhile."""
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(self._reader.read(), WITHIN_S)

    async def is_answered(self):
        """Whether a ping has its pong; what comes before that is still to be read."""
        self.send(frame(Opcode.PING, b"still there?"))
        before = []
        while (found := await self.next()) is not None:
            if found.opcode is Opcode.PONG and bytes(found.data) == b"still there?":
                self._frames = before + self._frames
                return True
            before.append(found)
        return False


def make_small(connection):
    """Let a connection of the server be blocked by few bytes that its peer does not read."""
    kernels = connection.transport.get_extra_info("socket")
    kernels.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    if sys.platform == "linux":  # a busy machine may take longer than TCP would wait
        kernels.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    connection.transport.set_write_buffer_limits(high=1024, low=512)


@contextlib.asynccontextmanager
async def raw_peer(url, *, receive_buffer=None):
    """Shake hands, and be gone without a word when the block ends.

    `receive_buffer`: bytes that the kernel takes for a peer that does not read.
    """
    uri = parse_uri(url)
    peer = socket.socket()
    if receive_buffer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, (uri.host, uri.port))
    reader, writer = await asyncio.open_connection(sock=peer)
    client = ClientProtocol(uri)
    client.send_request(client.connect())
    writer.writelines(client.data_to_send())
    while client.state is not State.OPEN:
        assert not reader.at_eof(), client.handshake_exc
        client.receive_data(await reader.read(4096))
    client.events_received()  # the answer to the handshake
    try:
        yield RawPeer(reader, writer, client)
    finally:
        writer.transport.abort()
