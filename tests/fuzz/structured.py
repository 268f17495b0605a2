"""Requests that are nearly right: one of the seeds with values, keys and places that are not."""

import copy
import json

from hypothesis import strategies as st

from sessiond.api.protocol.requests import BODY_KEYS
from tests.fuzz.seeds import BODIES, CHATS, FRAMES

STRANGE_TEXTS = (
    "", " ", "\0", "\ud800", "\udfff", "\u202e", "\ufeff", "e\u0301", "ﷺ" * 50, "🧙‍♂️", "İ", "ß",
    "<|im_end|>", "<|im_start|>system\n", "../../etc/passwd", "' OR 1=1 --", "{{ 7 * 7 }}", "%s%n",
    "null", "true", "NaN", "1e5", "a" * 5000,
)  # fmt: skip
STRANGE_NUMBERS = (
    0, -0.0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**19, 10**40, 0.1, 1.0, 1e-320,
    1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
KEYS = sorted(
    BODY_KEYS | {"type", "stream_id", "session", "response_id", "messages", "x", "", "🧙"}
)

leaves = (
    st.none()
    | st.booleans()
    | st.sampled_from(STRANGE_NUMBERS)
    | st.integers()
    | st.floats()
    | st.sampled_from(STRANGE_TEXTS)
    | st.text(max_size=20)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)
deep = st.integers(20, 3000).map(lambda depth: "[" * depth + "]" * depth)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    children = value.items() if isinstance(value, dict) else []
    children = enumerate(value) if isinstance(value, list) else children
    for key, inner in children:
        yield from places(inner, (*path, key))


def put(value, path, new):
    if not path:
        return new
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return value


@st.composite
def requests(draw, seeds):
    """Text of a request in which one to three places hold something else."""
    request = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(request))))
        request = put(request, path, draw(values))
    if isinstance(request, dict) and draw(st.booleans()):
        request[draw(st.sampled_from(KEYS))] = draw(values)
    text = json.dumps(request, ensure_ascii=draw(st.booleans()))
    match draw(st.integers(0, 9)):
        case 0 if text.startswith("{") and len(text) > 2:  # a key twice
            text = "{" + json.dumps(draw(st.sampled_from(KEYS))) + ": 1, " + text[1:]
        case 1:
            text = text.replace("null", draw(deep), 1)
        case 2:
            text = text[: draw(st.integers(0, len(text)))]
        case 3:
            text = draw(st.sampled_from(("\ufeff", " \n\t", "//", "\0"))) + text
        case _:
            pass
    return text


STRUCTURED = {
    "frame": requests(FRAMES),
    "response-body": requests(BODIES),
    "chat-body": requests(CHATS),
}


def as_bytes(text):
    """What a client could send of it: halves of characters are no UTF-8, but may come."""
    return text.encode("utf-8", "surrogatepass")
