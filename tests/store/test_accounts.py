"""Users, keys and the audit log in SQL."""

import asyncio
import dataclasses

import pytest

from sessiond.api_keys import hash_secret
from sessiond.store.account_records import Audit, NewKey, NewUser
from sessiond.store.schema import users
from sessiond.store.store import Store
from tests.databases import PATIENCE_S

SECRET = hash_secret("s")


@pytest.fixture
async def accounts(store):
    return store.accounts


def audit(action="test", subject=None, at=9.0, **detail):
    return Audit(at=at, actor="root", action=action, subject=subject, detail=detail)


def user(number, name=None, role="user"):
    return NewUser(
        id=f"user_{number}",
        name=name or f"name {number}",
        role=role,
        salt=bytes([number]) * 32,
        created_at=float(number // 2),  # some at the same time
    )


def key(number, owner=1):
    return NewKey(id=f"k{number}", user_id=f"user_{owner}", secret=SECRET, created_at=float(number))


async def add(accounts, number, **fields):
    return await accounts.add_user(user(number, **fields), None, [audit("user.add")])


async def test_a_key_leads_to_its_user_and_what_it_is_checked_by(accounts):
    assert await accounts.add_user(user(1, role="admin"), key(1), [audit()])
    owner = await accounts.key_owner("k1")
    assert (owner.user_id, owner.role, owner.salt) == ("user_1", "admin", b"\x01" * 32)
    assert owner.secret == SECRET
    assert await accounts.key_owner("k2") is None


async def test_a_revoked_key_leads_nowhere_and_can_be_revoked_once(accounts):
    await accounts.add_user(user(1), key(1), [audit()])
    assert not await accounts.revoke_key("user_2", "k1", audit())  # of somebody else
    assert await accounts.key_owner("k1") is not None
    assert await accounts.revoke_key("user_1", "k1", audit())
    assert await accounts.key_owner("k1") is None
    assert not await accounts.revoke_key("user_1", "k1", audit())


async def test_a_rotated_key_is_replaced_in_one_go(accounts):
    await accounts.add_user(user(1), key(1), [audit()])
    assert await accounts.rotate_key("k1", key(2), audit())
    assert await accounts.key_owner("k1") is None
    assert (await accounts.key_owner("k2")).user_id == "user_1"
    assert not await accounts.rotate_key("k1", key(3), audit())
    assert [one.id for one in await accounts.list_keys("user_1")] == ["k1", "k2"]


async def test_a_removed_user_ends_with_all_its_keys(accounts):
    await accounts.add_user(user(1), key(1), [audit()])
    await accounts.add_user(user(2), key(9, owner=2), [audit()])
    await accounts.add_key(key(2), audit())
    await accounts.revoke_key("user_1", "k1", audit())
    assert await accounts.remove_user("user_1", audit(at=7.0)) == ("k2",)
    assert await accounts.remove_user("user_1", audit()) is None
    assert await accounts.key_owner("k2") is None
    assert await accounts.key_owner("k9") is not None
    assert (await accounts.find_user("user_1")).revoked_at == 7.0
    assert not await accounts.add_key(key(3), audit())
    assert not await accounts.set_role("user_1", "admin", audit())


async def test_a_name_is_held_by_one_user_at_a_time(accounts):
    assert await add(accounts, 1, name="ada")
    assert not await add(accounts, 2, name="ada")
    assert await accounts.find_user("user_2") is None
    await accounts.remove_user("user_1", audit())
    assert await accounts.find_named("ada") is None
    assert await add(accounts, 3, name="ada")
    assert (await accounts.find_named("ada")).id == "user_3"


async def test_users_come_in_pages_each_once(accounts):
    for number in range(1, 8):
        await add(accounts, number)
    seen, after, more = [], None, True
    while more:
        page, more = await accounts.list_users(limit=3, after=after)
        seen += [one.id for one in page]
        after = seen[-1]
    assert seen == [f"user_{number}" for number in range(1, 8)]


async def test_unusable_keys_are_found_among_many(accounts):
    await accounts.add_user(user(1), key(1), [audit()])
    await accounts.add_key(key(2), audit())
    await accounts.revoke_key("user_1", "k2", audit())
    others = {f"x{number}" for number in range(1200)}
    assert await accounts.unusable({"k1", "k2", *others}) == {"k2", *others}
    assert await accounts.unusable({"k1"}) == frozenset()
    assert await accounts.any_key()
    await accounts.remove_user("user_1", audit())
    assert await accounts.unusable({"k1"}) == {"k1"}
    assert not await accounts.any_key()


async def test_what_did_not_happen_is_not_written_down(accounts):
    await add(accounts, 1, name="ada")
    await add(accounts, 2, name="ada")
    await accounts.revoke_key("user_1", "k1", audit("key.revoke"))
    await accounts.rotate_key("k1", key(2), audit("key.rotate"))
    await accounts.add_key(key(3, owner=7), audit("key.add"))
    await accounts.remove_user("user_7", audit("user.remove"))
    rows, more = await accounts.list_audits(limit=9, before=None)
    assert ([row.audit.action for row in rows], more) == (["user.add"], False)


async def test_the_audit_log_is_read_backwards_in_pages(accounts):
    for number in range(5):
        await accounts.add_audit(audit("act", f"user_{number}", number=number))
    first, more = await accounts.list_audits(limit=3, before=None)
    assert [row.audit.detail["number"] for row in first] == [4, 3, 2]
    assert more
    rest, more = await accounts.list_audits(limit=3, before=first[-1].id)
    assert [row.audit.subject for row in rest] == ["user_1", "user_0"]
    assert not more
    assert dataclasses.replace(rest[-1].audit, detail={}) == audit("act", "user_0")


async def test_t48_fifty_writers_of_keys_and_fifty_readers_meet_no_lock(url, store):
    """T48: each writer would be refused by the lock of another; two processes' worth of pools."""
    other = Store(url, timeout_s=PATIENCE_S)
    await store.accounts.add_user(user(1), key(1000), [audit()])
    try:
        writes = [
            (store if number % 2 else other).accounts.add_key(key(number), audit("key.add"))
            for number in range(50)
        ]
        reads = [(store, other)[n % 2].accounts.key_owner("k1000") for n in range(50)]
        done = await asyncio.gather(*writes, *reads)
        assert all(done)
        assert len(await store.accounts.list_keys("user_1")) == 51
    finally:
        await other.close()


async def test_a_user_without_a_salt_gets_one_with_its_first_key(store):
    """A server of the version before, on the same database, stores users without."""

    async def as_before(connection):
        await connection.execute(users.insert().values(id="old", created_at=1.0))

    await store.database.write(as_before)
    for name in ("one", "two"):
        new = NewKey(id=name, user_id="old", secret=SECRET, created_at=1.0)
        assert await store.accounts.add_key(new, audit())
    one, two = [await store.accounts.key_owner(name) for name in ("one", "two")]
    assert len(one.salt) == 32
    assert one.salt == two.salt


async def test_a_user_that_comes_with_a_first_turn_has_a_secret_salt_of_its_own(store):
    for name in ("ann", "bob"):
        await store.set_user_policy(name, None, 1.0)
        await store.accounts.add_key(
            NewKey(id=name, user_id=name, secret=SECRET, created_at=1.0), audit()
        )
    salts = {(await store.accounts.key_owner(name)).salt for name in ("ann", "bob")}
    assert len(salts) == 2
    assert {len(salt) for salt in salts} == {32}
    await store.set_user_policy("ann", None, 2.0)  # known already: the salt stays
    assert (await store.accounts.key_owner("ann")).salt in salts
