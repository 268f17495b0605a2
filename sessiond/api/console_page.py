"""`/console`: the console's static files from the package. Served without a key.

The files contain no data: the page requests it with the key that its user enters.
"""

from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from sessiond.api.refusal import plain_error_response

PATH = "/console"
_PAGE = "index.html"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# No foreign sources, nothing inline, no HTML from strings.
_SOURCES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _SOURCES.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated on each load; 304 while unchanged
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str
    tag: str


class ConsolePage:
    """Reads the files once, at construction."""

    def __init__(self) -> None:
        self._files = {
            entry.name: _read(entry.name, entry.read_bytes())
            for entry in files("sessiond.api").joinpath("console").iterdir()
            if entry.name.rpartition(".")[2] in _MEDIA_TYPES
        }

    def routes(self) -> list[BaseRoute]:
        """List the routes of the page and its files."""
        loaded = Route("/{name:path}", self.read_file, methods=["GET"])
        return [
            Route("/", self.redirect, methods=["GET"]),
            Route(PATH, self.read_page, methods=["GET"]),
            Mount(PATH, routes=[loaded]),
        ]

    async def redirect(self, request: Request) -> Response:  # noqa: ARG002 -- Starlette's signature
        """`GET /`: a reader who typed the address only sees the console."""
        return Response(status_code=307, headers={"Location": PATH})

    async def read_page(self, request: Request) -> Response:
        """`GET /console`."""
        return _answer(request, self._files[_PAGE])

    async def read_file(self, request: Request) -> Response:
        """`GET /console/{name}`: a script or a style sheet."""
        name = request.path_params["name"]
        found = self._files.get(name)
        if found is None or name == _PAGE:
            return plain_error_response(404, f"{request.method} {request.url.path}: Not Found", {})
        return _answer(request, found)


def _read(name: str, body: bytes) -> _File:
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    return _File(body, _MEDIA_TYPES[name.rpartition(".")[2]], tag)


def _answer(request: Request, found: _File) -> Response:
    headers = _HEADERS | {"ETag": found.tag}
    known = request.headers.get("if-none-match", "")
    if found.tag in (tag.strip() for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media_type)
