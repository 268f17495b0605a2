"""The modules that mutants are drawn from, by name."""

MODULES = {
    "block pool": "engine/kv/block_pool.py",
    "hashing": "engine/kv/hashing.py",
    "prefix cache": "engine/kv/prefix_cache.py",
    "page table": "engine/kv/page_table.py",
    "scheduler": "engine/core/scheduler.py",
    "quota SQL": "sessiond/store/quotas.py",
    "lifecycle": "sessiond/sessions/live_session.py",
    "tiers": "engine/kv/tiers/tiers.py",
    "rollback": "engine/kv/context.py",
    "attention kernel": "engine/model/kernels/attention.c",
}

UNTRACED = {
    "engine/model/kernels/attention.c": ("tests/kernels", "tests/laws/test_native_laws.py"),
    "sessiond/store/quotas.py": (
        "tests/store/test_quotas.py",
        "tests/sessions/test_quotas.py",
        "tests/sessions/test_quota_limits.py",
        "tests/api/test_quotas.py",
    ),
}
"""What reaches modules whose lines say nothing of tests: C, and SQL, which runs in greenlets."""

_KV = [
    "tests/laws/test_law_backend.py",
    "tests/laws/test_native_laws.py",
    "tests/sessions/test_contexts.py",
    "tests/sessions/test_long_chats.py",
    "tests/chaos/test_chaos.py",
]
_SESSIONS = ["tests/sessions", "tests/api", "tests/chaos/test_chaos.py"]

SECOND_RING = {
    "block pool": _KV,
    "hashing": _KV,
    "prefix cache": _KV,
    "page table": _KV,
    "scheduler": [*_KV, "tests/soaks/test_fake_soak.py"],
    "quota SQL": _SESSIONS,
    "lifecycle": _SESSIONS,
    "tiers": [*_KV, "tests/e2e/test_restart.py"],
    "rollback": _KV,
    "attention kernel": ["tests/kernels", "tests/laws", "tests/model"],
}
"""Files of the second ring that exercise a module, for mutants that the first has not found."""
