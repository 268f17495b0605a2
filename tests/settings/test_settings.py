import re

import pytest

from engine.config import EngineConfig
from sessiond.setting_errors import SettingError, allowed_values, load_settings
from sessiond.settings import Settings, service_variables


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    """No file and no variables but the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SESSIOND_CONFIG", raising=False)


def refusal(flags=None) -> str:
    with pytest.raises(SettingError) as caught:
        load_settings(flags or {})
    return str(caught.value)


def test_defaults_need_no_source():
    settings = load_settings({})
    assert (settings.host, settings.port, settings.block_size) == ("127.0.0.1", 8080, 16)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path, monkeypatch):
    (tmp_path / "sessiond.toml").write_text("port = 1\nmax_num_seqs = 1\nblock_size = 32\n")
    monkeypatch.setenv("SESSIOND_PORT", "2")
    monkeypatch.setenv("SESSIOND_MAX_NUM_SEQS", "2")
    settings = load_settings({"port": "3"})
    assert (settings.port, settings.max_num_seqs, settings.block_size) == (3, 2, 32)


def test_another_file_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "other.toml").write_text("port = 4\n")
    monkeypatch.setenv("SESSIOND_CONFIG", str(tmp_path / "other.toml"))
    assert load_settings({}).port == 4


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_named_file_must_be_there(name, monkeypatch):
    monkeypatch.setenv("SESSIOND_CONFIG", name)
    assert refusal() == f"SESSIOND_CONFIG must be a TOML file that exists (got {name})"


def test_an_empty_name_of_a_file_names_none(tmp_path, monkeypatch):
    (tmp_path / "sessiond.toml").write_text("port = 5\n")
    monkeypatch.setenv("SESSIOND_CONFIG", "")
    assert load_settings({}).port == 5


def test_a_file_that_is_not_utf8_is_told(tmp_path):
    (tmp_path / "sessiond.toml").write_bytes(b'model = "\xff"\n')
    assert refusal().startswith("sessiond.toml must be valid TOML (")


def test_the_database_lies_in_the_users_data_folder(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert load_settings({}).db == "sqlite+aiosqlite:////data/sessiond/sessiond.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert load_settings({}).db.startswith("sqlite+aiosqlite:////home/ada/.local/share/sessiond/")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("kv_cache_memory", "2GiB", 2 * 2**30),
        ("max_frame_bytes", "256KiB", 256 * 2**10),
        ("allowed_hosts", "a.example, b.example", ("a.example", "b.example")),
        (
            "allowed_origins",
            "https://a.example, http://[::1]:3000",
            ("https://a.example", "http://[::1]:3000"),
        ),
        ("retain_kv", "false", False),
        ("gpu_memory_utilization", "0.5", 0.5),
    ],
)
def test_values_are_read_from_text(monkeypatch, name, text, value):
    monkeypatch.setenv(f"SESSIOND_{name.upper()}", text)
    assert getattr(load_settings({}), name) == value


def test_lists_and_sizes_of_a_file_may_have_their_own_types(tmp_path):
    (tmp_path / "sessiond.toml").write_text('allowed_hosts = ["a"]\nkv_cache_memory = 1048576\n')
    settings = load_settings({})
    assert (settings.allowed_hosts, settings.kv_cache_memory) == (("a",), 2**20)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "99999"}, r"--port must be a whole number from 0 to 65535.*\(got 99999\)"),
        ({"dtype": "int8"}, r"--dtype must be auto, float32, bfloat16 or float16.*\(got int8\)"),
        ({"cpu_threads": "-1"}, r"--cpu-threads must be a whole number from 0 to 1024.*\(got -1\)"),
        ({"weights": "int4"}, r"--weights must be auto, native or dequantized.*\(got int4\)"),
        (
            {"kv_cache_dtype": "int8", "dtype": "float32"},
            r"--kv-cache-dtype must be .* where torch.*\(got int8\)",
        ),
        (
            {"kv_cache_dtype": "int8", "attention_backend": "torch"},
            r"must be .* than native.*\(got int8\)",
        ),
        ({"attention_backend": "sdpa"}, "must be auto, native, torch, triton or flash"),
        (
            {"kv_cache_dtype": "int8", "device": "cuda"},
            r"--kv-cache-dtype must be .* where torch.*\(got int8\)",
        ),
        ({"kv_cache_memory": "2 XB"}, r'--kv-cache-memory must be bytes, .*"2GiB".*\(got 2 XB\)'),
        ({"gpu_memory_utilization": "0"}, "must be a number above 0, up to 1"),
        ({"cuda_graphs": "on"}, r"--cuda-graphs must be auto or off.*\(got on\)"),
        (
            {"cuda_graph_sizes": "1,x"},
            r"--cuda-graph-sizes must be different numbers from 1.*\(got 1,x\)",
        ),
        ({"cuda_graph_sizes": "8,8"}, r"--cuda-graph-sizes must be different numbers.*\(got 8,8\)"),
        ({"cuda_graph_sizes": "64"}, "--cuda-graph-sizes must be .* max_num_seqs .32.*1,2,4,8"),
        ({"cuda_graph_sizes": "0"}, r"--cuda-graph-sizes must be different numbers.*\(got 0\)"),
        ({"turn_timeout": "nan"}, r"--turn-timeout must be a number, 0 or more.*\(got nan\)"),
        ({"target_inter_token_ms": "-1"}, "--target-inter-token-ms must be a number, 0 or more"),
        ({"num_speculative_tokens": "33"}, "must be a whole number from 0 to 32"),
        ({"ping_interval_s": "0"}, r"--ping-interval-s must be a number above 0.*\(got 0\)"),
        ({"model": ""}, r"--model must be a non-empty string.*\(got \)"),
        ({"db": "my file.db"}, r"--db must be a SQLAlchemy URL.*\(got my file.db\)"),
        ({"auth": "open"}, r"--auth must be none or keys.*\(got open\)"),
        (
            {"host": "0.0.0.0"},
            r"--host must be .* localhost while auth is none .--auth keys .*\(got 0.0.0.0\)",
        ),
        ({"host": "::"}, r"--host must be 127.0.0.1.*\(got ::\)"),
        ({"allowed_origins": "*"}, r"--allowed-origins must be https://HOST.*\(got \*\)"),
        ({"allowed_origins": "https://a,b.example"}, r"must be https.*\(got b.example\)"),
        ({"allowed_origins": "https://a/x"}, r"--allowed-origins must be .*\(got https://a/x\)"),
        ({"host": "example.org"}, r"--host must be .*\(got example.org\)"),
        (
            {"max_num_batched_tokens": "8"},
            r"--max-num-batched-tokens must be .* \(32\) or more.*\(got 8\)",
        ),
    ],
)
def test_a_bad_flag_is_named_with_its_value_and_what_is_allowed(flags, words):
    assert re.search(words, refusal(flags))


def test_with_keys_any_address_may_be_listened_on():
    for host in ("0.0.0.0", "::", "chat.example"):
        assert load_settings({"auth": "keys", "host": host}).host == host


def test_a_key_in_the_environment_is_for_clients_and_stops_no_server(monkeypatch):
    monkeypatch.setenv("SESSIOND_API_KEY", "sk-x")
    assert load_settings({}).auth == "none"


def test_a_bad_variable_is_named_as_it_was_set(monkeypatch):
    monkeypatch.setenv("SESSIOND_PORT", "eighty")
    assert refusal() == "SESSIOND_PORT must be a whole number from 0 to 65535 (got eighty)"


def test_a_bad_value_in_the_file_is_named_with_the_file(tmp_path):
    (tmp_path / "sessiond.toml").write_text("max_queue = -1\n")
    assert refusal() == "sessiond.toml: max_queue must be a whole number, 0 or more (got -1)"


def test_every_bad_value_is_told_at_once(tmp_path, monkeypatch):
    (tmp_path / "sessiond.toml").write_text("prot = 1\n")
    monkeypatch.setenv("SESSIOND_DEVICE", "tpu")
    assert len(refusal({"port": "x"}).splitlines()) == 3


def test_an_unknown_setting_in_the_file_is_an_error_with_a_guess(tmp_path):
    (tmp_path / "sessiond.toml").write_text("prot = 8080\n")
    assert refusal() == "sessiond.toml: prot: there is no such setting; did you mean port?"


def test_an_unknown_variable_with_our_prefix_is_an_error(monkeypatch):
    monkeypatch.setenv("SESSIOND_MAX_NUM_SEQ", "4")
    assert "did you mean max_num_seqs?" in refusal()


def test_the_choice_of_an_instruction_set_is_no_setting_of_the_server(monkeypatch):
    monkeypatch.setenv("SESSIOND_CPU_ISA", "portable")
    assert load_settings({}).port == 8080


def test_a_file_that_is_no_toml_is_an_error(tmp_path):
    (tmp_path / "sessiond.toml").write_text("port 8080\n")
    assert refusal().startswith("sessiond.toml must be valid TOML (")


def test_every_setting_says_what_it_is_and_what_is_allowed():
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description
        assert field.description.endswith("."), name
        assert allowed_values(name), name


def test_every_engine_setting_reaches_the_engine():
    """Each field of EngineConfig follows a setting, and none is forgotten."""
    changed = {
        "model": "m",
        "device": "cpu",
        "cpu_threads": 3,
        "dtype": "float32",
        "weights": "dequantized",
        "kv_cache_dtype": "float32",
        "attention_backend": "torch",
        "weights_offload_layers": 4,
        "block_size": 32,
        "gpu_memory_utilization": 0.5,
        "cuda_graphs": "off",
        "cuda_graph_sizes": "1,2",
        "kv_cache_memory": 2**20,
        "max_model_len": 64,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "target_inter_token_ms": 50.0,
        "num_speculative_tokens": 2,
        "max_queue": 3,
        "max_preemptions": 5,
        "enable_prefix_caching": False,
        "retain_kv": False,
        "idle_prefill": False,
        "max_replay_tokens": 7,
        "placement_policy": "cost_aware",
        "kv_low_watermark": 0.5,
        "kv_high_watermark": 0.75,
        "max_resident_blocks": 100,
        "max_user_resident_blocks": 200,
        "host_tier_size": 2**20,
        "disk_tier_size": 2**21,
        "disk_tier_path": "kv",
    }
    config = load_settings(changed).engine_config()
    expected = {("max_num_waiting" if k == "max_queue" else k): v for k, v in changed.items()}
    assert config == EngineConfig(**expected)
    assert set(expected) == set(EngineConfig.__struct_fields__)


def pod(service="SESSIOND", port="8080", address="10.96.0.1"):
    """The variables that Kubernetes sets for a Service in each pod of its namespace."""
    one = f"{service}_PORT_{port}_TCP"
    return {
        f"{service}_SERVICE_HOST": address,
        f"{service}_SERVICE_PORT": port,
        f"{service}_SERVICE_PORT_HTTP": port,
        f"{service}_PORT": f"tcp://{address}:{port}",
        one: f"tcp://{address}:{port}",
        f"{one}_PROTO": "tcp",
        f"{one}_PORT": port,
        f"{one}_ADDR": address,
    }


@pytest.mark.parametrize(
    "variables",
    [
        pod(),
        pod(address="[fd00::1]"),
        pod("SESSIOND_METRICS", "9090"),  # a Service named `sessiond-metrics`
        pod() | pod("SESSIOND_2"),
        {"SESSIOND_PORT_53_UDP": "udp://10.96.0.1:53", "SESSIOND_PORT": "udp://10.96.0.1:53"},
    ],
)
def test_n02_service_variables_of_kubernetes_are_no_settings(variables, tmp_path, monkeypatch):
    (tmp_path / "sessiond.toml").write_text("port = 9\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load_settings({}).port == 9
    assert load_settings({"port": "7"}).port == 7
    assert service_variables(variables | {"SESSIOND_HOST": "::1"}) == sorted(variables)


def test_n02_a_port_and_a_misspelling_beside_service_variables_are_as_ever(tmp_path, monkeypatch):
    for name, value in pod().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SESSIOND_PROT", "1")
    assert refusal() == "SESSIOND_PROT=1: there is no such setting; did you mean port?"
    monkeypatch.delenv("SESSIOND_PROT")
    (tmp_path / "sessiond.toml").write_text("port = -1\n")
    assert refusal().startswith("sessiond.toml: port must be ")
    monkeypatch.setenv("SESSIOND_PORT", "8081")
    assert load_settings({}).port == 8081


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SESSIOND_SERVICE_HOSTS", "10.0.0.1"),
        ("SESSIOND_SERVICES_PORT", "1"),
        ("SESSIOND_PORT_X_TCP", "tcp://10.0.0.1:1"),
        ("SESSIOND_PORT_8080", "1"),
        ("SESSIOND_METRICS_PORT", "1"),
        ("SESSIOND_HOST_NAME", "tcp://10.0.0.1:1"),
    ],
)
def test_n02_what_only_looks_like_a_service_variable_is_refused(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert refusal().startswith(f"{name}={value}: there is no such setting")


def test_n02_an_address_in_another_form_is_no_port(monkeypatch):
    monkeypatch.setenv("SESSIOND_PORT", "http://10.96.0.1:8080")
    assert refusal().startswith("SESSIOND_PORT must be a whole number from 0 to 65535")
