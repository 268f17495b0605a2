"""uvicorn's configuration for the gateway, as the protocol of its sockets requires."""

import uvicorn
from starlette.types import ASGIApp

from sessiond.gateway.http_protocol import http_protocol
from sessiond.gateway.limits import MAX_HEAD_BYTES, GatewayLimits
from sessiond.gateway.websocket_protocol import GatewayWebSocketProtocol

BACKLOG = 2048
CLOSE_GRACE_S = 5


def uvicorn_config(app: ASGIApp, limits: GatewayLimits) -> uvicorn.Config:
    """Set frame limit, pings and closing. The caller handles signals and listening."""
    return uvicorn.Config(
        app,
        lifespan="on",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        http=http_protocol(limits.request_timeout_s),
        ws=GatewayWebSocketProtocol,
        ws_per_message_deflate=False,  # 40 KiB per idle socket, for text in small pieces
        ws_max_size=limits.max_frame_bytes,
        ws_ping_interval=limits.ping_interval_s,
        ws_ping_timeout=limits.ping_timeout_s,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=CLOSE_GRACE_S,
    )
