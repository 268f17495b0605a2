"""docs/settings.md lists every setting. `python -m tests.settings.test_settings_page` writes it."""

from pathlib import Path

from sessiond.cli.setting_flags import default_text
from sessiond.setting_errors import allowed_values
from sessiond.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

HEAD = """\
# Settings of `sessiond serve`

A setting is read from its flag, else from its environment variable, else from `sessiond.toml` in the working folder (or
the file that `SESSIOND_CONFIG` names), else it has its default. `max_num_seqs`, for example, is the flag
`--max-num-seqs`, the variable `SESSIOND_MAX_NUM_SEQS` and the line `max_num_seqs = 8`. An on-off setting also has a
flag that turns it off, such as `--no-retain-kv`. An unknown setting or a bad value is an error that names the setting,
the value and the allowed values; the exit code is 2.

On a CPU the server runs its native kernels where the model and the settings allow it, and torch in float32 elsewhere.
Torch is much slower. The server selects it for `dtype` float32 and float16, and, with a warning, for `kv_cache_dtype`
float16 and fp8 and for a `block_size` other than 16. On the native kernels:

- `weights` native (the value of `auto`) keeps a file's quantisation, with int8 activations.
- `weights` dequantized computes in bfloat16 throughout. It is slower and closer to float32.
- `dtype` bfloat16 needs dequantized weights, so a quantised model needs both settings.
- `kv_cache_dtype` int8 is available. Torch has no int8 KV.

The variable `SESSIOND_CPU_ISA` (portable, avx2 or avx512) selects an instruction set below the best one.
[gpu.md](gpu.md) describes what runs on a GPU, and the meaning of `attention_backend`, fp8 KV, kept weights and
offloaded layers there.

| setting | default | allowed | what it does |
| --- | --- | --- | --- |
"""  # noqa: E501 -- lines of Markdown, wrapped at 120


IN_DATA_FOLDER = ("db", "disk_tier_path")  # whose place differs from machine to machine


def rendered() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = default_text(name, field)
        if name in IN_DATA_FOLDER:
            default = "in the user's data folder"
        allowed = allowed_values(name).replace("|", "\\|")
        rows.append(f"| `{name}` | {default} | {allowed} | {field.description} |\n")
    return HEAD + "".join(rows)


def test_the_page_of_settings_is_the_settings():
    assert PAGE.read_text() == rendered()


def test_the_page_shows_no_path_of_a_machine():
    assert "/sessiond/" not in PAGE.read_text()


if __name__ == "__main__":
    PAGE.write_text(rendered())
