"""`python -m benchmarks.fidelity`: what `shifted` costs in quality against `exact`.

Long chats (`chats.py`: real dialogues, put together) are played in a window of 1,024 tokens with
`sliding_window`, on the native kernels, with the replies of the dialogues and not the model's own,
so that all contexts hold the same text: `exact`, `shifted`, `exact` once more in other slots of its
blocks (which differs by rounding alone), and the whole conversation untrimmed. In every turn from
the first trim on the predictions of the reply's tokens are compared; after every trim code words
that were told earlier are asked for.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.fidelity.chats import DIALOGUES, Chat, ChatPlan, load_chats
from benchmarks.fidelity.contexts import Contexts
from benchmarks.fidelity.measures import (
    Distance,
    ProbeRow,
    Recall,
    TurnRow,
    distance,
    groups,
    only_one,
    perplexity,
    places,
    recall,
)
from benchmarks.fidelity.playing import (
    CONTEXTS,
    EXACT,
    PAIRS,
    SHIFTED,
    Language,
    Play,
    pair_name,
)
from benchmarks.machine import describe_machine
from engine.config import EngineConfig
from engine.files.catalog import DEFAULT_MODEL, resolve_model
from engine.files.spec_reader import read_spec
from engine.model.choice import prepare
from engine.text.chat_template import load_chat_format
from engine.text.tokenizer import load_tokenizer

_RESULTS = Path(__file__).parents[1] / "results"
_CHATS, _CHAT_TOKENS = 20, 2500
_QUICK_CHATS, _QUICK_CHAT_TOKENS = 2, 1500
_MOST_TOKENS = 8192  # of an untrimmed chat: what the default model takes
_MAIN = pair_name((EXACT, SHIFTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that a run has measured."""

    chats: Sequence[Chat]
    turns: Sequence[TurnRow]
    probes: Sequence[ProbeRow]
    trims: int
    arithmetic: str

    @property
    def pairs(self) -> dict[str, Distance]:
        """Every pair of contexts, over all replies."""
        return {name: distance(self.turns, name) for name in map(pair_name, PAIRS)}

    @property
    def parts(self) -> dict[str, Distance]:
        """Exact and shifted, in parts of the replies."""
        return {name: distance(rows, _MAIN) for name, rows in groups(self.turns).items()}

    @property
    def recalls(self) -> dict[str, dict[str, Recall]]:
        """By where the answer was told, then by context."""
        return {
            place: {name: recall(rows, name) for name in CONTEXTS}
            for place, rows in places(self.probes).items()
        }


def main(  # noqa: PLR0913 -- one parameter per option of the command line
    *,
    model: Annotated[str, typer.Option(help="A name, a .gguf file or a folder.")] = DEFAULT_MODEL,
    dialogues: Annotated[
        Path, typer.Option(help="Folder of *.jsonl files as in tests/data/dialogues.")
    ] = DIALOGUES,
    seed: Annotated[int, typer.Option(help="Which dialogues make a chat, and the words.")] = 1,
    chats: Annotated[int, typer.Option(min=1, help="How many.")] = _CHATS,
    window: Annotated[int, typer.Option(min=512, help="Tokens that the model sees.")] = 1024,
    quick: Annotated[bool, typer.Option(help="A minute instead of ten or more.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Play the chats; print tables; write JSON."""
    path = resolve_model(model)
    tokenizer = load_tokenizer(path)
    language = Language(form=load_chat_format(path, tokenizer), tokenizer=tokenizer)
    plan = ChatPlan(
        chats=_QUICK_CHATS if quick else chats,
        tokens=_QUICK_CHAT_TOKENS if quick else _CHAT_TOKENS,
        seed=seed,
    )
    played = load_chats(dialogues, plan, lambda text: len(tokenizer.encode(text)))
    findings = measure(path, language, played, window)
    _show(findings)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    target = output or _RESULTS / f"fidelity-{stamp}{'-quick' if quick else ''}.json"
    _store(target, path, window, findings)
    print(f"Written to {target}")


def measure(path: Path, language: Language, chats: Sequence[Chat], window: int) -> Findings:
    """Play every chat; prints a line for each, for a run takes minutes."""
    loaded = prepare(read_spec(path), EngineConfig(model=str(path), device="cpu"))
    blocks = (_MOST_TOKENS + (len(CONTEXTS) - 1) * 3 * window) // loaded.block_size
    contexts = Contexts(loaded, blocks)
    plays: list[Play] = []
    for number, chat in enumerate(chats):
        play = Play(contexts, language, chat, number=number, window=window).run()
        plays.append(play)
        told = f"{play.trims} trims, {len(play.turns)} replies, {len(play.probes)} questions"
        print(f"chat {number} ({chat.language}): {told}", flush=True)
    return Findings(
        chats=chats,
        turns=[row for play in plays for row in play.turns],
        probes=[row for play in plays for row in play.probes],
        trims=sum(play.trims for play in plays),
        arithmetic=f"{loaded.attention}: activations {loaded.dtype}, KV {loaded.kv_dtype}",
    )


def _show(findings: Findings) -> None:
    console = Console(width=110)
    console.print(describe_machine())
    console.print(f"{len(findings.chats)} chats, {findings.trims} trims, {findings.arithmetic}")
    console.print(_distance_table("All replies after the first trim", findings.pairs))
    console.print(_distance_table(f"{_MAIN}, by replies", findings.parts))
    console.print(_perplexity_table(findings))
    console.print(_recall_table(findings))
    for place, rows in places(findings.probes).items():
        only = only_one(rows, EXACT, SHIFTED)
        console.print(
            f"likeliest word, {place}: {only[0]} by exact only, {only[1]} by shifted only"
        )


def _distance_table(title: str, rows: Mapping[str, Distance]) -> Table:
    table = Table(
        "", "replies", "tokens", "KL, 1e-3: mean (median, worst)", "top-1, %", title=title
    )
    for name, found in rows.items():
        kl, top = found.divergence, found.same_top
        table.add_row(
            name,
            str(found.replies),
            str(found.tokens),
            f"{kl.mean * 1e3:.2f} ({kl.median * 1e3:.2f}, {kl.worst * 1e3:.2f})",
            f"{top.mean * 1e2:.1f} ({top.median * 1e2:.1f}, {top.worst * 1e2:.1f})",
        )
    return table


def _perplexity_table(findings: Findings) -> Table:
    table = Table("perplexity", *CONTEXTS, "shifted / exact")
    for name, rows in groups(findings.turns).items():
        found = {context: perplexity(rows, context) for context in CONTEXTS}
        cells = (f"{value:.3f}" for value in found.values())
        table.add_row(name, *cells, f"{found[SHIFTED] / found[EXACT]:.4f}")
    return table


def _recall_table(findings: Findings) -> Table:
    table = Table(
        "answer in", "context", "questions", "greedy reply has it", "likeliest word",
        "median probability", "mean nats", title="Code words, asked after each trim",
    )  # fmt: skip
    for place, contexts in findings.recalls.items():
        for name, found in contexts.items():
            table.add_row(
                place,
                name,
                str(found.questions),
                f"{found.said:.1%}",
                f"{found.likeliest:.1%}",
                f"{found.median_probability:.3f}",
                f"{found.mean_nats:.3f}",
            )
    return table


def _store(path: Path, model: Path, window: int, findings: Findings) -> None:
    result: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.fidelity", *sys.argv[1:]]),
        "machine": describe_machine(),
        "model": model.name,
        "arithmetic": findings.arithmetic,
        "window": window,
        "trims": findings.trims,
        "chats": [
            {"language": one.language, "dialogues": list(one.dialogues)} for one in findings.chats
        ],
        "pairs": {name: asdict(found) for name, found in findings.pairs.items()},
        "parts": {name: asdict(found) for name, found in findings.parts.items()},
        "perplexity": {name: perplexity(findings.turns, name) for name in CONTEXTS},
        "recall": {
            place: {name: asdict(found) for name, found in contexts.items()}
            for place, contexts in findings.recalls.items()
        },
        "turns": [asdict(row) for row in findings.turns],
        "questions": [asdict(row) for row in findings.probes],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
