"""Many rows, put into a database at once: sessions with turns, items, keys and all that."""

import sqlalchemy as sa

from sessiond.store.schema import (
    audit_log,
    idempotency_keys,
    items,
    keys,
    quotas,
    replicas,
    reservations,
    sessions,
    summaries,
    system_prompts,
    turns,
    users,
)

USER = "ann"
SESSIONS = 1500  # so many that no planner takes an index for dearer than to read all rows
_CLOSED_OF_TEN = 3
_TURNS_EACH = 2
_AT_ONCE = 500


def fill(url, count=SESSIONS):
    """Store `count` sessions of one user, the first of every ten closed; time goes by with them."""
    engine = sa.create_engine(url.replace("+aiosqlite", ""))
    with engine.begin() as connection:
        for table, rows in _tables(count):
            for start in range(0, len(rows), _AT_ONCE):
                connection.execute(table.insert(), rows[start : start + _AT_ONCE])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("VACUUM ANALYZE"))
    engine.dispose()


def _tables(count):
    numbers = range(count)
    yield (
        users,
        [{"id": USER, "created_at": 1.0, "salt": b"s"}]
        + [
            {"id": f"user_{n}", "created_at": 2.0 + n, "name": f"name {n}", "salt": b"s"}
            for n in numbers
        ],
    )
    yield keys, [_key(n) for n in numbers]
    yield quotas, [{"user_id": USER, "turns": count}]
    yield quotas, [{"user_id": f"user_{n}"} for n in numbers]
    yield reservations, [_reservation(n) for n in numbers]
    yield replicas, [{"id": "rep_0", "name": "other", "started_at": 1.0, "expires_at": 1e12}]
    yield system_prompts, [_prompt(n) for n in numbers]
    yield sessions, [_session(n) for n in numbers]
    yield turns, [_turn(n, at) for n in numbers for at in range(_TURNS_EACH)]
    yield items, [_item(n, at, who) for n in numbers for at in range(_TURNS_EACH) for who in (0, 1)]
    yield summaries, [_summary(n) for n in numbers]
    yield idempotency_keys, [_used_key(n) for n in numbers]
    yield audit_log, [{"at": 1.0, "actor": "a", "action": "b", "detail": {}} for _ in numbers]


def is_closed(number):
    """Whether a session was closed; what it said stays, as if something were built on it."""
    return number % 10 < _CLOSED_OF_TEN


def _key(n):
    return {"id": f"key_{n}", "user_id": f"user_{n}", "salt": b"s", "hash": b"h", "created_at": 1.0}


def _reservation(n):
    return {
        "turn_id": f"held_{n}",
        "user_id": USER,
        "tokens": 1,
        "minute_start": 0,
        "day_start": 0,
        "expires_at": 1e12 + n,
    }


def _prompt(n):
    return {"id": f"sys_{n}", "user_id": USER, "text": None, "token_ids": bytes(8), "tokens": 2}


def _session(n):
    return {
        "id": f"conv_{n}",
        "user_id": USER,
        "model": "echo",
        "vocab_size": 256,
        "system_prompt_id": f"sys_{n}",
        "tip_id": f"turn_{n}_{_TURNS_EACH - 1}",
        "context_tokens": 8,
        "retention": "release",
        "priority": "normal",
        "fidelity": "exact",
        "metadata": {},
        "created_at": 10.0 + n,
        "last_active_at": 10.0 + n,
        "closed_at": 10.0 + n if is_closed(n) else None,
        "owner": "rep_0",
        "epoch": 1,
    }


def _turn(n, at):
    return {
        "id": f"turn_{n}_{at}",
        "user_id": USER,
        "session_id": f"conv_{n}",
        "parent_id": f"turn_{n}_{at - 1}" if at else None,
        "system_prompt_id": f"sys_{n}",
        "message_id": f"reply_{n}_{at}",
        "model": "echo",
        "status": "completed",
        "generate": True,
        "awaits_reply": False,
        "request": {},
        "seed": 7,
        "start_tokens": 2 + 3 * at,
        "input_tokens": 2,
        "context_tokens": 5 + 3 * at,
        "input_ids": bytes(8),
        "reply_ids": bytes(4),
        "created_at": 10.0 + n + at / 10,
        "messages_digest": f"digest_{n}_{at}",
    }


def _item(n, at, who):
    return {
        "id": f"msg_{n}_{at}_{who}",
        "user_id": USER,
        "session_id": f"conv_{n}",
        "turn_id": f"turn_{n}_{at}",
        "position": who,
        "is_reply": bool(who),
        "role": "assistant" if who else "user",
        "text": "hi",
        "status": "completed",
        "created_at": 10.0 + n,
    }


def _summary(n):
    return {
        "id": f"sum_{n}",
        "user_id": USER,
        "session_id": f"conv_{n}",
        "turn_id": f"turn_{n}_0",
        "token_ids": bytes(8),
        "tokens": 2,
        "text": "in short",
        "input_tokens": 5,
        "cached_tokens": 5,
        "output_tokens": 1,
        "created_at": 10.0 + n,
    }


def _used_key(n):
    return {
        "user_id": USER,
        "key": f"used_{n}",
        "digest": "d",
        "result_id": f"turn_{n}_0",
        "created_at": 10.0 + n,
    }
