"""No question of the store reads through a large table: each is listed here with what it asks for.

On a database of many sessions, by the plan that its own planner makes.
"""

import inspect
import shutil
from dataclasses import replace
from itertools import count

import pytest

from sessiond.api_keys import HashedSecret
from sessiond.domain import TurnUsage
from sessiond.store.account_records import Audit, NewKey, NewUser
from sessiond.store.accounts import AccountStore
from sessiond.store.idempotency import UsedKeys
from sessiond.store.membership import Membership
from sessiond.store.quota_store import QuotaStore
from sessiond.store.records import (
    NewReservation,
    NewSummary,
    SessionChoice,
    SessionHints,
    UsedKey,
)
from sessiond.store.store import Store
from tests.databases import sqlite_url
from tests.store import crowd, rows
from tests.store.explain import counted, noted, walks

ANN = crowd.USER
NOW = 5e9
OPEN, TIP = "conv_5", "turn_5_1"
_numbers = count(1)

FEW, MANY = 100, crowd.SESSIONS
# What looks at the user's own sessions, and is asked where these are limited, or for show.
GROWING = {"list_sessions new", "quotas.account", "quotas.set_quota", "quotas.idle_forks"}
GROWING |= {"begin_turn of a session that is limited", "accounts.any_key"}
PARTS = {
    "": Store,
    "quotas.": QuotaStore,
    "accounts.": AccountStore,
    "used_keys.": UsedKeys,
    "membership.": Membership,
}
# Read in their order until a page is full.
_PAGES_OF_SESSIONS = {"ix_sessions_open", "ix_sessions_closed"}
PAGES = {
    "abandoned_sessions": _PAGES_OF_SESSIONS,
    "quotas.idle_forks": _PAGES_OF_SESSIONS,
    "accounts.list_users": {"ix_users_created_at_id"},
    "accounts.list_audits": {"pk_audit_log", "all rows of audit_log"},
    # asked once, before the first user is there
    "accounts.any_key": {"pk_keys", "ix_keys_user_id", "all rows of keys", "all rows of users"},
}


async def begun(store, *, of=None, reservation=None, stored=True):
    """A session with a turn that runs."""
    number = next(_numbers)
    name = f"own_{number}"
    session = replace(rows.session(name, user_id=ANN), prompt_id=f"front_{name}", tip_id=of)
    turn = rows.turn(f"resp_{name}", of, user_id=ANN, session_id=name)
    turn = replace(turn, prompt_id=session.prompt_id)
    if reservation:
        reservation = replace(reservation, turn_id=turn.id)
    if stored:
        system_prefix = rows.prompt(session.prompt_id)
        await store.begin_turn(turn, session=session, prompt=system_prefix, reservation=reservation)
    return turn, session


def kept(turn):
    end = rows.kept(turn.id, turn.parent_id, user_id=ANN, session_id=turn.session_id)
    return replace(end, prompt_id=turn.prompt_id)


async def told(store, **begins):
    turn, _ = await begun(store, **begins)
    await store.commit_turn(kept(turn))
    return turn


RESERVED = NewReservation(turn_id="", tokens=5, now=NOW, expires_at=1e13)


async def begin_and_keep(store):
    turn, _ = await begun(store, reservation=RESERVED)
    await store.commit_turn(kept(turn))


async def go_on(store):
    first = await told(store)
    name = f"{first.id}_2"
    turn = rows.turn(name, first.id, user_id=ANN, session_id=first.session_id, start=5)
    turn = replace(turn, prompt_id=first.prompt_id)
    reservation = replace(RESERVED, turn_id=name)
    await store.begin_turn(turn, session=None, prompt=None, reservation=reservation)
    await store.abort_turn(rows.lost(name, ANN))


async def append(store):
    turn, session = await begun(store, stored=False)
    system_prefix = rows.prompt(session.prompt_id)
    await store.create_session(session, system_prefix)
    await store.append_turn(turn, kept(turn), prompt=None)


async def rewind(store):
    """A fork that had said nothing, from a turn of a session that was closed."""
    base = await told(store)
    session = rows.session(f"fork_{base.id}", ANN, base.prompt_id, base.id, 5)
    await store.create_session(session, None)
    await store.close_session(ANN, base.session_id, NOW)
    first = await store.find_turn(ANN, base.id)
    await store.rewind_session(ANN, session.id, base.id, first, NOW, epoch=1)
    await store.reset_session(ANN, session.id, NOW, epoch=1)


async def close(store):
    """With what was left for its sake."""
    base = await told(store)
    await store.add_summary(summary(base))
    await store.charge(ANN, f"summary_{base.id}", 5, NOW)
    fork = await told(store, of=base.id)
    await store.close_session(ANN, base.session_id, NOW)
    await store.close_session(ANN, fork.session_id, NOW)


def summary(turn):
    return NewSummary(
        id=f"summary_{turn.id}",
        user_id=ANN,
        session_id=turn.session_id,
        turn_id=turn.id,
        token_ids=(1,),
        text="in short",
        usage=TurnUsage(),
        created_at=NOW,
    )


async def limited(store):
    """Sessions are counted where they are limited."""
    await store.quotas.set_quota(ANN, {"max_sessions": 10**6}, NOW)
    await begun(store, reservation=RESERVED)
    await store.quotas.standing(ANN)
    await store.quotas.set_quota(ANN, {"max_sessions": None}, NOW)


def audit(action="x"):
    return Audit(at=NOW, actor="a", action=action, subject=None, detail={})


def new_key(user_id="user_1"):
    secret = HashedSecret(b"s", b"h")
    return NewKey(id=f"new_{next(_numbers)}", user_id=user_id, secret=secret, created_at=NOW)


async def add_user(store):
    name = f"new_{next(_numbers)}"
    user = NewUser(id=name, name=name, role="user", salt=b"s", created_at=NOW)
    await store.accounts.add_user(user, new_key(name), [audit()])


async def add_key(store):
    await store.accounts.add_key(new_key(), audit())


async def use_key(store):
    used = UsedKey(digest="d", result_id="r")
    await store.used_keys.claim(ANN, "new", used, NOW)
    await store.used_keys.release(ANN, "new", "r")


def asks(method, *arguments, **named):
    async def ask(store):
        *parts, name = method.split(".")
        for part in parts:
            store = getattr(store, part)
        await getattr(store, name)(*arguments, **named)

    return ask


def lists(limit=20, after=None, **which):
    return asks("list_sessions", SessionChoice(**which), limit=limit, after=after)


PAGE = {"limit": 20, "after": None, "order": "desc"}
QUESTIONS = {
    # --- turns
    "begin_turn, commit_turn": begin_and_keep,
    "begin_turn of a session that is limited": limited,
    "abort_turn": go_on,
    "append_turn, create_session": append,
    "fail_running": asks("fail_running", NOW),
    "find_turn": asks("find_turn", ANN, TIP),
    "turn_by_digest": asks("turn_by_digest", ANN, "echo", ["digest_5_0", "digest_5_1"]),
    "delete_turn": asks("delete_turn", ANN, TIP, NOW),
    "reply_text": asks("reply_text", ANN, TIP),
    "turn_items": asks("turn_items", ANN, TIP, **PAGE),
    # --- contexts
    "context": asks("context", ANN, "sys_5", TIP),
    "context_ids": asks("context_ids", ANN, "sys_5", TIP),
    "layout": asks("layout", ANN, 2, TIP),
    "covers": asks("covers", ANN, "turn_5_0", TIP),
    "is_in_context": asks("is_in_context", ANN, "turn_5_0", TIP),
    "newest_summary": asks("newest_summary", ANN, TIP),
    "turn_ending_at": asks("turn_ending_at", ANN, TIP, 3),
    "add_summary, charge, close_session": close,
    "dead_ends": asks("dead_ends", ANN, OPEN, TIP),
    "context_items": asks("context_items", ANN, TIP, **PAGE),
    "context_items after one": asks("context_items", ANN, TIP, **PAGE | {"after": "msg_5_0_0"}),
    "find_item": asks("find_item", ANN, TIP, "msg_5_0_0"),
    # --- sessions
    "find_session": asks("find_session", ANN, OPEN),
    "session_detail": asks("session_detail", ANN, OPEN),
    "claim_session": asks("claim_session", ANN, OPEN, NOW),
    "claim_session of a dead one": asks("claim_session", ANN, "conv_6", NOW, dead_by=1e13),
    "rewind_session, reset_session": rewind,
    "set_metadata": asks("set_metadata", ANN, OPEN, {}),
    "set_policy": asks("set_policy", ANN, OPEN, None),
    "set_hints": asks("set_hints", ANN, OPEN, SessionHints()),
    "abandoned_sessions": asks("abandoned_sessions", 20.0, 10),
    "list_sessions": lists(user_id=ANN),
    "list_sessions after one": lists(user_id=ANN, after="conv_55"),
    "list_sessions new": lists(user_id=ANN, standing="new"),
    "list_sessions begun": lists(user_id=ANN, standing="begun"),
    "list_sessions closed": lists(user_id=ANN, standing="closed"),
    "list_sessions of all": lists(user_id=None),
    "list_sessions closed of all": lists(user_id=None, standing="closed"),
    "list_sessions by id": lists(user_id=ANN, ids=("conv_5", "conv_6")),
    # --- users, quotas, keys
    "user_policy": asks("user_policy", ANN),
    "user_salts": asks("user_salts", {ANN, "user_7"}),
    "set_user_policy": asks("set_user_policy", ANN, None, NOW),
    "quotas.account": asks("quotas.account", ANN),
    "quotas.standing": asks("quotas.standing", ANN),
    "quotas.set_quota": asks("quotas.set_quota", ANN, {"weight": 1.0}, NOW),
    "quotas.idle_forks": asks("quotas.idle_forks", ANN),
    "quotas.renew_reservations": asks("quotas.renew_reservations", ["held_1", "held_2"], NOW),
    "quotas.reap_reservations": asks("quotas.reap_reservations", NOW),
    "quotas.add_residency": asks("quotas.add_residency", {ANN: 1.0, "user_1": 2.0}),
    "accounts.key_owner": asks("accounts.key_owner", "key_1"),
    "accounts.unusable": asks("accounts.unusable", ["key_1", "key_2"]),
    "accounts.any_key": asks("accounts.any_key"),
    "accounts.add_user": add_user,
    "accounts.find_user": asks("accounts.find_user", "user_1"),
    "accounts.find_named": asks("accounts.find_named", "name 1"),
    "accounts.session_owner": asks("accounts.session_owner", OPEN),
    "accounts.list_users": asks("accounts.list_users", limit=20, after="user_7"),
    "accounts.set_role": asks("accounts.set_role", "user_1", "admin", audit()),
    "accounts.remove_user": asks("accounts.remove_user", "user_2", audit()),
    "accounts.add_key": add_key,
    "accounts.list_keys": asks("accounts.list_keys", "user_1"),
    "accounts.find_key": asks("accounts.find_key", "key_1"),
    "accounts.revoke_key": asks("accounts.revoke_key", "user_3", "key_3", audit()),
    "accounts.rotate_key": asks("accounts.rotate_key", "key_4", new_key("user_4"), audit()),
    "accounts.add_audit": asks("accounts.add_audit", audit()),
    "accounts.list_audits": asks("accounts.list_audits", limit=20, before=None),
    "used_keys.find": asks("used_keys.find", ANN, "used_1", 0.0),
    "used_keys.claim, used_keys.release": use_key,
    "used_keys.forget": asks("used_keys.forget", 12.0),
    # --- servers
    "membership.register": asks("membership.register", NOW, 1e13),
    "membership.renew": asks("membership.renew", NOW, 1e13),
    "membership.renew beside a dead one": asks("membership.renew", NOW, 1e13, dead_by=2e12),
    "membership.taken": asks("membership.taken", ["conv_5", "conv_6"]),
    "membership.resign": asks("membership.resign"),
}


@pytest.fixture(scope="module")
def crowd_url(lend_database):
    with lend_database() as url:
        crowd.fill(url)
        yield url


@pytest.fixture
async def busy(crowd_url):
    """The store of a server on a database with many rows."""
    store = Store(crowd_url)
    await store.membership.register(NOW, 1e13)
    yield store
    await store.close()


@pytest.mark.parametrize("question", QUESTIONS)
async def test_nothing_reads_through_a_large_table(busy, crowd_url, question):
    with noted() as statements:
        await QUESTIONS[question](busy)
    assert statements
    of_sessions = _PAGES_OF_SESSIONS if question.startswith("list_sessions") else set()
    assert walks(crowd_url, statements) <= PAGES.get(question, of_sessions)


def test_every_question_is_listed():
    asked = {
        f"{part}{name}"
        for part, kind in PARTS.items()
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "close"
    }
    listed = {name.split(" ")[0] for line in QUESTIONS for name in line.split(", ")}
    assert asked == listed


def test_a_query_that_reads_all_rows_is_found_out(crowd_url):
    everyone = [("SELECT id FROM turns ORDER BY kv_bytes", ())]
    assert walks(crowd_url, everyone) == {"all rows of turns"}


@pytest.fixture(scope="module")
def crowds(migrated_file, tmp_path_factory):
    """SQLite databases with few sessions and with many."""
    folder = tmp_path_factory.mktemp("crowds")
    urls = [sqlite_url(shutil.copy(migrated_file, folder / f"{many}.db")) for many in (FEW, MANY)]
    for url, many in zip(urls, (FEW, MANY), strict=True):
        crowd.fill(url, many)
    return urls


@pytest.mark.parametrize("question", sorted(QUESTIONS.keys() - GROWING))
async def test_the_work_is_the_same_however_many_sessions_there_are(crowds, question):
    taken = []
    for url in crowds:
        store = Store(url)
        with counted(store) as steps:
            try:
                await store.membership.register(NOW, 1e13)
                await QUESTIONS[question](store)  # the first has more to prepare
                before = steps[0]
                await QUESTIONS[question](store)
                taken.append(steps[0] - before)
            finally:
                await store.close()
    few, many = taken
    assert many <= 1.5 * few + 200, taken
