"""KV in tiers of sessions that the engine has no context of, as after a restart. Reads only."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from engine.ipc.client import EngineClient
from engine.ipc.queries import GetPageKeys, GetStored, PageKeys, StoredBlocks
from sessiond.domain import BlockCounts
from sessiond.errors import RequestError
from sessiond.sessions.queries import ask_in_time
from sessiond.store.records import SessionRecord
from sessiond.store.store import Store

_MOST_KEYS = 131_072  # kept: of two million tokens, in 8 MiB
_KEYS_AT_ONCE = 4096  # in one query: a millisecond of the engine's time

_Context = tuple[int, str, str | None]  # epoch, system prefix, tip


class StoredKv:
    """Finds a session's blocks by the keys of its pages. Asyncio thread only.

    A tier knows no sessions, only keys, and a key is made from all ids before it. So the first look
    at a context reads its ids from SQL; its keys are kept for the next one.
    """

    def __init__(self, *, engine: EngineClient, store: Store, ask_timeout_s: float) -> None:
        self._engine = engine
        self._store = store
        self._ask_timeout_s = ask_timeout_s
        self._keys: OrderedDict[_Context, list[bytes]] = OrderedDict()  # longest unused first
        self._kept = 0

    @property
    def may_be(self) -> bool:
        """Whether the engine has a tier."""
        return any(not tier.reason for tier in self._engine.info.tiers)

    async def blocks(
        self, sessions: Sequence[SessionRecord], salts: Mapping[str, bytes]
    ) -> dict[str, BlockCounts]:
        """Blocks in tiers by session. `salts`: by user; sessions of other users are left out.

        Without tiers, and without an answer of the engine, there are none.
        """
        begun = [one for one in sessions if one.tip_id is not None and one.user_id in salts]
        if not begun or not self.may_be:
            return {}
        found: dict[str, BlockCounts] = {}
        try:
            chains = [await self._chain(one, salts[one.user_id]) for one in begun]
            for start, stop in _batches(chains):
                query = GetStored(chains=chains[start:stop])
                answer = await ask_in_time(self._engine, query, self._ask_timeout_s)
                counts = answer.blocks if isinstance(answer, StoredBlocks) else []
                for one, by_tier in zip(begun[start:stop], counts, strict=True):
                    found[one.id] = BlockCounts(
                        host=by_tier.get("host", 0), disk=by_tier.get("disk", 0)
                    )
        except RequestError:  # sessions are shown without an engine, too
            return {}
        return found

    async def _chain(self, session: SessionRecord, salt: bytes) -> list[bytes]:
        context = (self._engine.epoch, session.prompt.id, session.tip_id)
        keys = self._keys.get(context)
        if keys is None:
            keys = await self._read(session, salt)
            self._keep(context, keys)
        else:
            self._keys.move_to_end(context)
        return keys

    async def _read(self, session: SessionRecord, salt: bytes) -> list[bytes]:
        stored = await self._store.context(session.user_id, session.prompt.id, session.tip_id)
        if stored.edits:  # pages of an edited context are not restored
            return []
        query = GetPageKeys(salt=salt, ids=stored.ids)
        answer = await ask_in_time(self._engine, query, self._ask_timeout_s)
        return answer.keys if isinstance(answer, PageKeys) else []

    def _keep(self, context: _Context, keys: list[bytes]) -> None:
        replaced = self._keys.pop(context, [])  # another task may have read it meanwhile
        self._keys[context] = keys
        self._kept += len(keys) - len(replaced)
        while self._kept > _MOST_KEYS:
            _, dropped = self._keys.popitem(last=False)
            self._kept -= len(dropped)


def _batches(chains: Sequence[Sequence[bytes]]) -> list[tuple[int, int]]:
    """Split chains into ranges of at most `_KEYS_AT_ONCE` keys; a longer one stands alone."""
    ranges: list[tuple[int, int]] = []
    start, keys = 0, 0
    for place, chain in enumerate(chains):
        if keys and keys + len(chain) > _KEYS_AT_ONCE:
            ranges.append((start, place))
            start, keys = place, 0
        keys += len(chain)
    return [*ranges, (start, len(chains))]
