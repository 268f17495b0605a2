import pytest
import typer
from typer.testing import CliRunner

from sessiond.cli.setting_flags import with_setting_flags
from sessiond.settings import Settings


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command that has the settings' flags; gives its result and the settings it got."""
    monkeypatch.chdir(tmp_path)
    seen: list[Settings] = []

    def take(settings: Settings) -> None:
        """Take settings."""
        seen.append(settings)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(with_setting_flags(take))

    def invoke(*arguments: str):
        return CliRunner().invoke(app, arguments), seen

    return invoke


def test_every_setting_has_a_flag_with_its_description_and_default(run):
    result, _ = run("--help")
    text = " ".join(result.output.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description in text
    assert "(default: 8080)" in text
    assert "(default: 1.0 MiB)" in text


def test_flags_reach_the_settings(run):
    result, seen = run("--port", "9", "--kv-cache-memory", "2GiB", "--no-retain-kv")
    assert result.exit_code == 0
    assert (seen[0].port, seen[0].kv_cache_memory) == (9, 2 * 2**30)
    assert (seen[0].retain_kv, seen[0].enable_prefix_caching) == (False, True)


def test_a_switch_can_be_turned_on_over_the_environment(run, monkeypatch):
    monkeypatch.setenv("SESSIOND_RETAIN_KV", "false")
    _, seen = run("--retain-kv")
    assert seen[0].retain_kv


def test_a_bad_value_is_wrong_usage(run):
    result, seen = run("--port", "99999")
    assert result.exit_code == 2
    assert "--port must be a whole number from 0 to 65535 (got 99999)" in result.output
    assert not seen


def test_an_unknown_flag_is_wrong_usage(run):
    result, _ = run("--prot", "1")
    assert result.exit_code == 2
    assert "--prot" in result.output
