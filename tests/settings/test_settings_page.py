"""docs/settings.md lists every setting. `python -m tests.settings.test_settings_page` writes it."""

from pathlib import Path

from sessiond.cli.setting_flags import default_text
from sessiond.setting_errors import allowed_values
from sessiond.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

HEAD = """\
# Settings of `sessiond serve`

Flags take precedence over environment variables, then `sessiond.toml` in the working folder (or the
file named by `SESSIOND_CONFIG`), then the defaults. The setting `max_num_seqs` is the flag
`--max-num-seqs`, the variable `SESSIOND_MAX_NUM_SEQS` and the line `max_num_seqs = 8`. An unknown
setting or a bad value is an error that names the setting, the value and the allowed values; the
exit code is 2. On-off settings have a second flag: `--no-retain-kv`.

On a CPU the native kernels run where they can, and torch in float32 elsewhere. `dtype` float32 and
float16 always select torch. So do `kv_cache_dtype` float16 and fp8 and a `block_size` other than
16, with a warning, because torch is much slower. On the native kernels `weights` native (the value
of `auto`) keeps a file's quantisation, with int8 activations; dequantized is bfloat16 throughout,
slower and closer to float32. `dtype` bfloat16 needs dequantized weights, so a quantised model needs
both settings. Torch has no int8 KV. [gpu.md](gpu.md) describes what runs on a GPU, and the meaning
of `attention_backend`, fp8 KV, kept weights and offloaded layers there. The variable
`SESSIOND_CPU_ISA` (portable, avx2 or avx512) selects an instruction set below the best one.

| setting | default | allowed | what it does |
| --- | --- | --- | --- |
"""


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
