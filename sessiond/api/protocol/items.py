"""Input items: messages of text, the only kind that this server reads."""

from sessiond.api.protocol import fields
from sessiond.domain import InputItem, Role

ROLES: tuple[Role, ...] = ("user", "assistant", "system", "developer")
MAX_ADDED = 20  # per request, to a conversation
MAX_ITEMS = 10_000
MAX_PARTS = 1000
TEXT_PARTS = ("input_text", "output_text", "text")
# clients resend ids, statuses and annotations of items that they received
ITEM_KEYS = frozenset({"type", "id", "role", "content", "status", "phase", "object"})
PART_KEYS = frozenset({"type", "text", "annotations", "logprobs", "prompt_cache_breakpoint"})


def decode_input(value: object, name: str = "input") -> tuple[InputItem, ...]:
    """Read `input`: null, a string (one user message) or a list of message items.

    Raises:
        RequestError: names the item.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (InputItem(role="user", text=value),)
    if not isinstance(value, list):
        fields.refuse(name, value, "a string or an array of message items")
    fields.sequence(name, value, most=MAX_ITEMS)
    return tuple(_item(f"{name}[{index}]", item) for index, item in enumerate(value))


def _item(name: str, value: object) -> InputItem:
    item = fields.mapping(name, value)
    kind = item.get("type")
    if kind is not None and kind != "message":
        fields.unsupported(f"{name}.type", kind, "message")
    fields.only_known(item, ITEM_KEYS, f"{name}.")
    role = fields.one_of(f"{name}.role", item.get("role"), ROLES)
    return InputItem(role=role, text=decode_content(f"{name}.content", item.get("content")))


def decode_content(name: str, value: object) -> str:
    """Read a message's content. The texts of several parts are joined without a separator.

    Raises:
        RequestError: names the invalid part.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        fields.refuse(name, value, "a string or an array of text parts")
    fields.sequence(name, value, most=MAX_PARTS)
    return "".join(_part(f"{name}[{index}]", part) for index, part in enumerate(value))


def _part(name: str, value: object) -> str:
    part = fields.mapping(name, value)
    kind = part.get("type")
    if kind not in TEXT_PARTS:
        fields.unsupported(f"{name}.type", kind, fields.either(TEXT_PARTS))
    fields.only_known(part, PART_KEYS, f"{name}.")
    return fields.text(f"{name}.text", part.get("text"))
