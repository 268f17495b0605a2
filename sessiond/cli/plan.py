"""`sessiond plan`: plans a model's memory and the sessions that fit, without a server."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from engine.errors import ConfigError, EngineError
from engine.files.catalog import UnknownModelError, resolve_config
from engine.planning.device_sizes import Placing, size_up
from engine.planning.formats import WEIGHT_BITS
from engine.planning.memory_plan import DeviceMemory, Load, free_bytes, plan_memory, ways_to_fit
from engine.planning.shape_reader import PlannedModel, read_planned_model
from engine.system.byte_size import BYTE_SIZES, parse_bytes
from sessiond.cli.ask_server import JsonOption, KeyOption, print_json, server_at
from sessiond.cli.fail import FAILED, WRONG_USAGE, fail
from sessiond.cli.plan_page import PlanPage, comparison_line, plan_object, plan_page
from sessiond.settings import Settings

PLANNED_SETTINGS = frozenset(
    {
        "model",
        "device",
        "dtype",
        "weights",
        "weights_offload_layers",
        "kv_cache_dtype",
        "attention_backend",
        "block_size",
        "gpu_memory_utilization",
        "kv_cache_memory",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "num_speculative_tokens",
    }
)
MOST_APART = 0.02  # relative difference of a prediction and a running server


def plan(  # noqa: PLR0913, PLR0917 -- one per flag
    settings: Settings,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            show_default=False,
            help="Memory that is free on one device before the start, such as 24GB: the total of "
            "an empty GPU, or the free memory of a CPU (default: this machine's).",
        ),
    ] = None,
    overhead: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            show_default=False,
            help="Memory of it that driver, runtime or others take before the pool is sized "
            "(default: 0).",
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option(min=1, help="Number of devices that share each layer of the model.")
    ] = 1,
    weights_format: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help=f"Format of the weights: {', '.join(WEIGHT_BITS)} (default: the server's).",
        ),
    ] = None,
    lora_slots: Annotated[int, typer.Option(min=0, help="Number of LoRA adapters in memory.")] = 0,
    lora_rank: Annotated[int, typer.Option(min=1, help="Rank of a LoRA adapter.")] = 16,
    text_tokens: Annotated[int, typer.Option(min=0, help="Text tokens of one conversation.")] = 0,
    images: Annotated[int, typer.Option(min=0, help="Number of images in one conversation.")] = 0,
    image_size: Annotated[
        str,
        typer.Option(
            metavar="WIDTHxHEIGHT",
            help="Size of an image in pixels, where the encoder accepts any size.",
        ),
    ] = "1024x1024",
    image_requests: Annotated[
        int, typer.Option(min=1, help="Number of requests whose images are encoded at once.")
    ] = 1,
    encoder_on_cpu: Annotated[
        bool, typer.Option("--encoder-on-cpu", help="Keep the vision encoder in main memory.")
    ] = False,
    generated_tokens: Annotated[
        int, typer.Option(min=0, help="Reply tokens of one conversation.")
    ] = 0,
    session_tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            show_default=False,
            help="Session length in tokens; may be repeated. The plan reports how many fit.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="URL of a running server with the same settings. The command fails if its pool "
            "differs from the plan by more than 2 %.",
        ),
    ] = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan memory: weights, activations, KV, and how many conversations fit.

    Settings have the same meaning as for `sessiond serve`. --model accepts a config.json.
    """
    server = None if url is None else _server(url, api_key)
    model = _model(settings.model)
    device = _device(settings)
    _known_format(weights_format, model)
    found = _memory(device, _size("memory", memory), _size("overhead", overhead), server)
    load = Load(
        text_tokens=text_tokens,
        images=images,
        generated_tokens=generated_tokens,
        pixels=_pixels(image_size),
        image_requests=image_requests,
    )
    try:
        config = settings.engine_config()
        placing = Placing(
            device=device,
            devices=devices,
            weights_format=weights_format,
            lora_slots=lora_slots,
            lora_rank=lora_rank,
            encoder_on_cpu=encoder_on_cpu and device == "cuda",
        )
        sizes = size_up(model, config, placing)
        planned = plan_memory(config, model, sizes, found, load)
        ways = () if planned.pool else ways_to_fit(config, model, placing, found, load)
    except ConfigError as error:
        fail(f"--{error.name.replace('_', '-')} must be {error.allowed} (got {error.value})", 2)
    page = PlanPage(planned, tuple(session_tokens or ()), devices, ways)
    _print(page, server, as_json=as_json)


def _print(
    page: PlanPage,
    server: Mapping[str, Any] | None,
    *,
    as_json: bool,
) -> None:
    console = Console(highlight=False)
    if as_json:
        print_json(plan_object(page, server))
    else:
        console.print(plan_page(page))
    apart = 0.0
    if server is not None:
        line, apart = comparison_line(page.plan, server)
        if not as_json:
            console.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(FAILED if page.plan.pool is None or apart > MOST_APART else 0)


def _server(url: str, api_key: str | None) -> Mapping[str, Any]:
    with server_at(url, api_key) as server:
        return server.capacity()


def _model(name: str) -> PlannedModel:
    try:
        return read_planned_model(resolve_config(name))
    except UnknownModelError as error:
        fail(f"--model={name}: {error}", WRONG_USAGE)
    except EngineError as error:
        fail(error, WRONG_USAGE)


def _device(settings: Settings) -> str:
    """Return the planned device; `auto` is the CPU, since plans are often made elsewhere."""
    return "cuda" if settings.device == "cuda" else "cpu"


def _known_format(name: str | None, model: PlannedModel) -> None:
    allowed = f"--weights-format must be one of {', '.join(WEIGHT_BITS)}"
    if name is None and model.quantized:
        fail(
            f"{allowed} (got none): weights of {model.name} are quantised "
            f"(quant_method {model.quantized!r})",
            WRONG_USAGE,
        )
    if name is not None and name not in WEIGHT_BITS:
        fail(f"{allowed} (got {name})", WRONG_USAGE)


def _pixels(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})[xX]([1-9]\d{0,4})", text)
    if match is None:
        fail(
            f"--image-size must be WIDTHxHEIGHT in pixels, as in 1024x768 (got {text})", WRONG_USAGE
        )
    return int(match[1]), int(match[2])


def _size(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        fail(f"--{flag} must be {error} (got {text})", WRONG_USAGE)


def _memory(
    device: str,
    given: int | None,
    overhead: int | None,
    server: Mapping[str, Any] | None,
) -> DeviceMemory:
    if given is None and server is not None:
        given = int(server["memory"]["free_bytes"]) + int(server["memory"]["weights_bytes"])
    if given is None and device == "cuda":
        fail(f"--memory must be {BYTE_SIZES} with --device cuda (got none)", WRONG_USAGE)
    return DeviceMemory(
        num_bytes=free_bytes() if given is None else given, overhead_bytes=overhead or 0
    )
