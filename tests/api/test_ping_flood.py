"""A peer that sends pings and reads no pongs."""

import asyncio
import socket

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.api.scripted import ScriptedService, reply
from tests.harness.serving import gateway_of, serving

PINGS = 60_000  # 7 MB of pongs, beyond what the kernel takes
BATCH = 1000


async def open_socket(served):
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", served.port))
    reader, writer = await asyncio.open_connection(sock=peer)
    client = ClientProtocol(parse_uri(served.ws_url))
    client.send_request(client.connect())
    writer.writelines(client.data_to_send())
    while client.state is not State.OPEN:
        client.receive_data(await reader.read(4096))
    return reader, writer, client


async def flood(writer, client):
    for first in range(0, PINGS, BATCH):
        for number in range(first, first + BATCH):
            client.send_ping(payload(number))
        writer.writelines(client.data_to_send())
        await writer.drain()


def payload(number):
    return str(number).zfill(120).encode()


async def test_pongs_that_nobody_reads_take_no_memory_and_the_last_is_owed():
    asked = asyncio.Event()

    def answer(_request):
        asked.set()
        return reply("x")

    async with serving(gateway_of(ScriptedService(answer))) as served, asyncio.timeout(300):
        reader, writer, client = await open_socket(served)
        writer.transport.pause_reading()
        await flood(writer, client)
        client.send_text(b'{"type":"response.create","input":"hi"}')
        writer.writelines(client.data_to_send())
        await asked.wait()  # so all pings before it have been taken
        (connection,) = served.server.server_state.connections
        assert connection.transport.get_write_buffer_size() < 2**20
        writer.transport.resume_reading()
        pongs = []
        while not pongs or pongs[-1] != payload(PINGS - 1):
            client.receive_data(await reader.read(2**16))
            frames = [event for event in client.events_received() if isinstance(event, Frame)]
            pongs += [frame.data for frame in frames if frame.opcode is Opcode.PONG]
        assert pongs == sorted(pongs)
        writer.close()
