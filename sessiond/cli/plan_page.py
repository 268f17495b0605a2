"""Formats a memory plan for terminals and scripts. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from engine.planning.device_sizes import Placing
from engine.planning.families import FAMILIES
from engine.planning.memory_plan import SPARE_BYTES, MemoryPlan
from engine.system.byte_size import format_bytes

USUAL_LENGTHS = (1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class PlanPage:
    """A plan with what is asked of it: lengths of sessions in tokens, and ways to fit."""

    plan: MemoryPlan
    lengths: Sequence[int]
    devices: int
    ways: Sequence[tuple[Placing, MemoryPlan]] = ()


def plan_page(page: PlanPage) -> Group:
    """Format the plan for a terminal."""
    plan = page.plan
    return Group(
        _headline(plan, page.devices),
        _runner_line(plan),
        "",
        _bytes_table(plan),
        "",
        *_verdict(page),
        *_load_lines(plan),
    )


def _headline(plan: MemoryPlan, devices: int) -> Text:
    shape, model = plan.model.language, plan.model
    heads = f"KV of {shape.num_kv_heads} heads for {shape.num_heads} in {plan.sizes.kv_dtype}"
    if model.layers and model.layers[0].kv_heads != shape.num_kv_heads:
        heads = f"KV as one latent in {plan.sizes.kv_dtype}"
    layers = f"{shape.num_layers} layers"
    if sliding := sum(shape.window_layers):
        layers += f" ({sliding} of them see {shape.sliding_window} tokens)"
    parts = [
        f"{_count(model.num_parameters)} weights in {plan.sizes.weights_format}",
        layers,
        heads,
    ]
    family = model.family if model.family in FAMILIES else f"{model.family}, counted as a Llama"
    lines = [f"{model.name} ({family}): {', '.join(parts)}"]
    if model.vision is not None:
        lines.append(f"an image takes {plan.tokens_per_image} tokens")
    if plan.encoder_host_bytes:
        lines.append(f"the encoder takes {format_bytes(plan.encoder_host_bytes)} of main memory")
    if devices > 1:
        lines.append(
            f"one of {devices} devices that share each layer; a sessiond engine uses one device"
        )
    return Text("\n".join(lines))


def _runner_line(plan: MemoryPlan) -> Text:
    """Say whether this server can run the model, and through what."""
    sizes = plan.sizes
    if sizes.runner == "none":
        return Text(f"runner: none, this server can't run it: {sizes.runner_reason}")
    why = f" ({sizes.runner_reason})" if sizes.runner_reason else ""
    return Text(f"runner: {sizes.runner}{why}")


def _count(values: int) -> str:
    return f"{values / 1e9:.2f} billion" if values >= 1e9 else f"{values / 1e6:.0f} million"


def _bytes_table(plan: MemoryPlan) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    memory, sizes = plan.memory, plan.sizes
    table.add_row("memory", format_bytes(memory.num_bytes), "free before the start")
    outside = memory.num_bytes - memory.overhead_bytes - plan.usable_bytes
    for name, size, note in (
        ("weights", sizes.weights_bytes, ""),
        ("vision encoder", 0 if sizes.encoder_on_cpu else sizes.vision_bytes, ""),
        ("LoRA slots", sizes.lora_bytes, ""),
        ("activations", sizes.activation_bytes, "of the largest step"),
        ("images", plan.vision_activation_bytes, "while they are encoded"),
        ("overhead", memory.overhead_bytes, "taken before the pool is sized"),
        ("unused", outside, f"beside --gpu-memory-utilization {plan.utilization}"),
    ):
        if size:
            table.add_row(f"- {name}", format_bytes(size), note)
    note = plan.pool.reason if plan.pool is not None and sizes.device == "cpu" else ""
    table.add_row("KV", format_bytes(plan.kv_bytes), note)
    return table


def _verdict(page: PlanPage) -> list[str]:
    plan = page.plan
    if plan.pool is None:
        return [f"Nothing fits: {plan.refusal}", *_ways_lines(page)]
    per_token = f"{plan.kv_bytes_per_token / 1024:.1f} KiB each"
    beyond = plan.kv_bytes_per_token_beyond_window
    if plan.sizes.window_bytes_per_block:
        per_token += f", {beyond / 1024:.1f} KiB beyond the window"
    blocks = (
        f"{plan.num_blocks} blocks of {plan.block_size} tokens: {plan.total_tokens} tokens, "
        f"{per_token}"
    )
    longest = f"longest context: {plan.pool.max_model_len} tokens"
    sessions = f"sessions at once: {_sessions(plan, page.lengths)}"
    return [blocks, sessions, longest, *_widest_line(plan)]


def _ways_lines(page: PlanPage) -> list[str]:
    """What would fit, as flags, with the bytes of the weights."""
    lines = _widest_line(page.plan)
    for title, runs_here in (("would fit", True), ("would fit in other servers", False)):
        ways = [
            f"{_flags(placing)} ({format_bytes(plan.sizes.weights_bytes)}"
            f"{' on each' if placing.devices > 1 else ''})"
            for placing, plan in page.ways
            if (plan.sizes.runner != "none") == runs_here
        ]
        if ways:
            lines.append(f"{title}: {', '.join(ways)}")
    return lines


def _flags(placing: Placing) -> str:
    given = []
    if placing.weights_format is not None:
        given.append(f"--weights-format {placing.weights_format}")
    if placing.devices > 1:
        given.append(f"--devices {placing.devices}")
    return " ".join(given)


def _widest_line(plan: MemoryPlan) -> list[str]:
    """Return what another share would give, if it leaves room for the GPU's libraries."""
    if plan.widest is None or plan.widest[0] == plan.utilization:
        return []
    share, num_blocks = plan.widest
    room = f"leaves {format_bytes(SPARE_BYTES)} for libraries and fragmentation"
    return [f"--gpu-memory-utilization {share:g} {room}: {num_blocks} blocks"]


def _sessions(plan: MemoryPlan, lengths: Sequence[int]) -> str:
    return ", ".join(
        f"{plan.sessions_of(tokens)} of {tokens}" for tokens in _lengths(plan, lengths)
    )


def _lengths(plan: MemoryPlan, lengths: Sequence[int]) -> list[int]:
    """Return the requested lengths, else usual lengths that the model supports."""
    longest = 0 if plan.pool is None else plan.pool.max_model_len
    usual = [tokens for tokens in USUAL_LENGTHS if tokens <= longest]
    return list(lengths) or usual or [longest or 1]


def _load_lines(plan: MemoryPlan) -> list[str]:
    if not plan.load_tokens:
        return []
    spare = plan.usable_bytes + plan.memory.overhead_bytes - plan.needed_bytes
    fits = (
        f"{format_bytes(spare)} are left" if spare >= 0 else f"{format_bytes(-spare)} are missing"
    )
    line = (
        f"one conversation of {plan.load_tokens} tokens: {format_bytes(plan.load_bytes)} of KV, "
        f"{format_bytes(plan.needed_bytes)} in all; {fits}"
    )
    return [line]


def plan_object(page: PlanPage, server: Mapping[str, Any] | None) -> dict[str, Any]:
    """Build the plan as JSON; all bytes are per device."""
    plan = page.plan
    sizes = plan.sizes
    found: dict[str, Any] = {
        "model": plan.model.name,
        "parameters": plan.model.num_parameters,
        "device": sizes.device,
        "devices": page.devices,
        "family": plan.model.family,
        "runner": sizes.runner,
        "runner_reason": sizes.runner_reason or None,
        "weights_format": sizes.weights_format,
        "kv_dtype": sizes.kv_dtype,
        "memory_bytes": plan.memory.num_bytes,
        "weights_bytes": sizes.weights_bytes,
        "vision_bytes": 0 if sizes.encoder_on_cpu else sizes.vision_bytes,
        "lora_bytes": sizes.lora_bytes,
        "activation_bytes": sizes.activation_bytes,
        "vision_activation_bytes": plan.vision_activation_bytes,
        "encoder_host_bytes": plan.encoder_host_bytes,
        "overhead_bytes": plan.memory.overhead_bytes,
        "kv_bytes": plan.kv_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_bytes_per_token_beyond_window": plan.kv_bytes_per_token_beyond_window,
        "block_size": plan.block_size,
        "total_blocks": plan.num_blocks,
        "total_tokens": plan.total_tokens,
        "max_model_len": None if plan.pool is None else plan.pool.max_model_len,
        "gpu_memory_utilization": plan.utilization,
        "usable_bytes": plan.usable_bytes,
        "sessions": {
            str(tokens): plan.sessions_of(tokens) for tokens in _lengths(plan, page.lengths)
        },
        "load": {
            "tokens": plan.load_tokens,
            "kv_bytes": plan.load_bytes,
            "needed_bytes": plan.needed_bytes,
        },
        "tokens_per_image": plan.tokens_per_image,
        "refusal": plan.refusal or None,
        "would_fit": [_way_object(*way) for way in page.ways],
    }
    if server is not None:
        found["server"] = {
            "total_blocks": server["total_blocks"],
            "apart": comparison_line(plan, server)[1],
        }
    return found


def _way_object(placing: Placing, plan: MemoryPlan) -> dict[str, Any]:
    return {
        "weights_format": placing.weights_format,
        "devices": placing.devices,
        "weights_bytes": plan.sizes.weights_bytes,
        "total_tokens": plan.total_tokens,
        "runner": plan.sizes.runner,
    }


def comparison_line(plan: MemoryPlan, server: Mapping[str, Any]) -> tuple[str, float]:
    """Compare the pool's capacity in tokens with a server's: a text, and the relative difference.

    Bytes are not compared: a pool always has the bytes of its limit, whatever a token needs.
    """
    found = server["total_blocks"] * server["block_size"]
    apart = abs(plan.total_tokens - found) / found
    line = (
        f"the server has {server['total_blocks']} blocks of {server['block_size']} tokens: "
        f"{found} tokens, {server['kv_bytes_per_token'] / 1024:.1f} KiB each; "
        f"difference {apart:.1%}"
    )
    return line, apart
