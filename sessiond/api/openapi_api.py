"""`/openapi.json`: the OpenAPI document. Served without a key: it contains no user data."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from policies.registry import installed_context_policies
from sessiond.api.access import OPEN_PATHS
from sessiond.api.auth import NoAuth
from sessiond.api.openapi.document import openapi_document
from sessiond.api.parts import Gateway
from sessiond.version import product_version


class OpenApi:
    """Builds the document once, at construction."""

    def __init__(self, gateway: Gateway) -> None:
        policies = installed_context_policies()
        document = openapi_document(
            product_version(),
            context_policies={name: policies.parameters(name) for name in policies.names},
            open_paths=OPEN_PATHS,
            asks_for_keys=not isinstance(gateway.auth, NoAuth),
        )
        self._body = msgspec.json.encode(document)

    def routes(self) -> list[BaseRoute]:
        """List the route."""
        return [Route("/openapi.json", self.read, methods=["GET"])]

    async def read(self, request: Request) -> Response:  # noqa: ARG002 -- Starlette's signature
        """`GET /openapi.json`."""
        return Response(self._body, media_type="application/json")
