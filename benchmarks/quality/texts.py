"""The dialogues of `tests/data` as ids: windows for teacher forcing, prompts for replies."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.text.chat_template import ChatFormat, load_chat_format
from engine.text.tokenizer import load_tokenizer

Ids = npt.NDArray[np.int32]

WINDOW = 512  # tokens
_FOLDER = Path(__file__).parents[2] / "tests" / "data" / "dialogues"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What the model is given; the same ids for everyone."""

    windows: Ids  # [windows, WINDOW]: all dialogues, whole, one after the other
    prompts: Sequence[Sequence[int]]  # each dialogue's first message, ready for the reply
    stop_ids: frozenset[int]


def load_texts(model: Path) -> Texts:
    """Encode every dialogue with the model's own template and vocabulary."""
    form = load_chat_format(model, load_tokenizer(model))
    dialogues = [
        json.loads(line)["turns"]
        for path in sorted(_FOLDER.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    stream = [token for turns in dialogues for token in _whole(form, turns)]
    windows = np.array(stream[: len(stream) // WINDOW * WINDOW], dtype=np.int32)
    return Texts(
        windows=windows.reshape(-1, WINDOW),
        prompts=[[*_whole(form, turns[:1]), *form.generation_prompt] for turns in dialogues],
        stop_ids=frozenset(form.stop_ids),
    )


def _whole(form: ChatFormat, turns: Sequence[dict[str, str]]) -> list[int]:
    ids = form.open()
    for turn in turns:
        ids += form.message("user" if turn["role"] == "user" else "assistant", turn["text"])
    return ids
