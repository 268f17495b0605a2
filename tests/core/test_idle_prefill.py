"""What is computed in advance of a turn: only while idle, at nobody's cost, seen by nobody."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.idle_prefill import QUIET_S, STEP_TOKENS
from engine.ipc.messages import TurnDone, TurnFailed
from tests.core.expected_turns import (
    HEADER,
    OTHER,
    OWED,
    answered,
    context_of,
    cost,
    reply_to,
    works_in_advance,
)
from tests.fakes.fake_model import FakeText, expected_reply
from tests.harness.loop import Engine


def test_a_turn_that_begins_as_expected_computes_only_the_rest(engine: Engine) -> None:
    ids = answered(engine)
    turn = [*HEADER, 7, 7, 7, 7]
    assert cost(engine, "a", turn) == 4
    assert context_of(engine).ids[: len(ids) + 7] == [*ids, *turn]


@pytest.mark.parametrize("turn", [OTHER, HEADER[:2], [5], [*HEADER[:2], 9, 9]])
def test_a_turn_that_begins_otherwise_computes_all_of_it(engine: Engine, turn) -> None:
    ids = answered(engine)
    assert cost(engine, "a", turn) == len(turn)
    assert engine.kept("t2")[:1] == reply_to(engine, [*ids, *turn])[:1]


@pytest.mark.parametrize("begins", [HEADER, OTHER])
def test_a_turn_that_waits_or_runs_has_no_drafts(engine: Engine, begins: list[int]) -> None:
    answered(engine)
    engine.submit("a", [*begins, 7])
    engine.check()
    engine.step(2)
    engine.check()


def test_a_turn_of_the_drafts_alone_still_computes_its_last_token(engine: Engine) -> None:
    ids = answered(engine)
    assert cost(engine, "a", HEADER) == 1
    assert engine.kept("t2")[:1] == reply_to(engine, [*ids, *HEADER])[:1]


@given(
    prompts=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    replies=st.integers(1, 20),
    drafts=st.integers(0, 6),
    right=st.lists(st.booleans(), min_size=4, max_size=4),
    block_size=st.sampled_from([1, 2, 4, 16]),
)
@settings(deadline=None, max_examples=60)
def test_nothing_that_is_told_depends_on_it(prompts, replies, drafts, right, block_size) -> None:
    told = []
    for on in (False, True):
        engine = Engine(num_blocks=400, block_size=block_size, idle_prefill=on)
        engine.open("a")
        counts = []
        for number, length in enumerate(prompts):
            ids = [100 + number] * length
            draft = ([100 + number + 1] * 6)[:drafts] if right[number] else [99] * drafts
            turn = engine.turn("a", ids, max_output_tokens=replies, draft_ids=draft)
            engine.check()
            ending, view = engine.ending(turn), engine.view("a")
            took = ending.counts
            counts.append(
                (ending.kept_ids, took.reused_tokens, took.recomputed_tokens, took.new_tokens)
            )
            assert view.kept_len <= view.tokens == len(context_of(engine).ids)
            assert view.blocks <= -(-view.tokens // block_size)
        told.append(counts)
    assert told[0] == told[1]


def test_what_was_computed_in_advance_is_new_to_the_turn_that_it_served(engine: Engine) -> None:
    ids = answered(engine)
    started = engine.started(engine.turn("a", [*HEADER, 7]))
    assert (started.reused_tokens, started.recomputed_tokens) == (len(ids) - OWED, 0)
    assert started.new_tokens == OWED + len(HEADER) + 1


def test_what_was_computed_in_advance_and_lost_is_new_too(make_engine) -> None:
    engine = make_engine(enable_prefix_caching=False)
    ids = answered(engine)
    engine.release("a")
    started = engine.started(engine.turn("a", [*HEADER, 7]))
    assert (started.reused_tokens, started.recomputed_tokens) == (0, len(ids) - OWED)
    assert started.new_tokens == OWED + len(HEADER) + 1


def test_what_another_session_computed_too_is_reused(make_engine) -> None:
    told = []
    for on in (False, True):
        engine = make_engine(idle_prefill=on)
        ids, more = answered(engine), [*OTHER, *range(60, 100)]
        engine.open("b", ids)
        engine.turn("b", more)
        started = engine.started(engine.turn("a", more))
        told.append((started.reused_tokens, started.recomputed_tokens, started.new_tokens))
    assert told[0] == told[1]


# --- seen by nobody


def test_a_view_shows_the_owed_ids_and_no_draft(engine: Engine) -> None:
    ids = answered(engine)
    view = engine.view("a")
    assert context_of(engine).drafted == len(HEADER)
    assert (view.tokens, view.kept_len, view.blocks) == (len(ids), len(ids), 2)
    assert engine.stats().kept_tokens == len(ids)


@pytest.mark.parametrize("prompt", range(20, 37))
def test_drafts_take_no_block_and_are_not_hashed(make_engine, prompt: int) -> None:
    engine = make_engine()
    ids = answered(engine, prompt=prompt)
    assert engine.view("a").blocks == -(-len(ids) // 16)
    assert context_of(engine).drafted == min(len(HEADER), -len(ids) % 16)
    assert engine.stats().cached_blocks == 0
    hashed = [page.hashed for page in engine.view("a").page_table]
    assert sum(hashed) == len(ids) // 16


def test_a_block_that_drafts_filled_is_hashed_once_a_turn_begins_with_them(make_engine) -> None:
    engine = make_engine()
    ids = answered(engine, prompt=19)  # 29 ids: the drafts are the last three of the block
    assert len(ids) % 16 == 16 - len(HEADER)
    engine.open("b", [*ids, *OTHER])
    assert engine.started(engine.turn("b", [4])).reused_tokens == len(ids) // 16 * 16
    engine.turn("a", [*HEADER, 4])
    engine.open("c", [*ids, *HEADER])
    assert engine.started(engine.turn("c", [4])).reused_tokens == len(ids) + len(HEADER)


# --- at nobody's cost


def test_an_engine_without_work_sleeps(engine: Engine) -> None:
    answered(engine)
    steps = engine.model.steps
    for _ in range(3):
        assert not works_in_advance(engine)
    assert engine.model.steps == steps == engine.stats().step_times.count


def test_nothing_is_computed_in_advance_while_a_turn_waits_or_runs(engine: Engine) -> None:
    engine.open("a")
    engine.open("b")
    first = engine.submit("a", [1] * 20, max_output_tokens=2, draft_ids=HEADER)
    second = engine.submit("b", [2] * 20, max_output_tokens=9)
    engine.step_until(lambda: engine.ending(second) is not None)
    assert engine.ending(first) is not None
    assert engine.model.computed_tokens == 40 + 1 + 8
    engine.run()
    assert engine.model.computed_tokens == 49 + 2 * OWED + len(HEADER)


def test_a_step_in_advance_is_small_however_many_sessions_are_idle(engine: Engine) -> None:
    for number in range(9):
        engine.open(f"s{number}")
        engine.submit(f"s{number}", [number] * 16, draft_ids=HEADER)
    engine.step_until(lambda: not engine.loop.has_work)
    steps = 0
    engine.clock.advance(QUIET_S)
    before = engine.model.computed_tokens
    while engine.loop.step():
        steps += 1
        assert engine.model.computed_tokens - before <= STEP_TOKENS
        before = engine.model.computed_tokens
    assert steps == 5
    assert all(context_of(engine, f"s{number}").drafted == 3 for number in range(9))


def test_a_prompt_that_was_cut_is_not_computed_for_a_turn_that_may_not_come(make_engine) -> None:
    engine = make_engine(max_num_batched_tokens=32)
    engine.open("a")
    turn = engine.submit("a", [1] * 90, draft_ids=HEADER)
    engine.step()
    engine.cancel(turn, keep=True)
    assert not works_in_advance(engine)
    assert engine.view("a").kept_len == 32


def test_history_without_kv_is_not_computed_in_advance(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", [1] * 2, draft_ids=HEADER)
    engine.step_until(lambda: engine.ending(turn) is not None)
    engine.release("a")
    assert not works_in_advance(engine)


@pytest.mark.parametrize("setting", ["idle_prefill", "retain_kv"])
def test_it_can_be_switched_off(make_engine, setting: str) -> None:
    engine = make_engine(**{setting: False})
    engine.open("a")
    turn = engine.submit("a", [1] * 20, draft_ids=HEADER)
    engine.step_until(lambda: engine.ending(turn) is not None)
    assert not works_in_advance(engine)


def test_nothing_is_computed_for_a_client_that_left(engine: Engine) -> None:
    answered(engine)
    turn = engine.submit("a", [2] * 3)
    engine.step()
    engine.cancel(turn, keep=False, reason="disconnected")
    assert not works_in_advance(engine)


def test_a_full_pool_loses_nothing_for_it(make_engine) -> None:
    engine = make_engine(num_blocks=4, enable_prefix_caching=False)
    engine.open("b")
    engine.turn("b", [2] * 22, max_output_tokens=1)
    engine.open("a")
    turn = engine.submit("a", [1] * 25, draft_ids=HEADER)  # its reply fills two blocks
    engine.step_until(lambda: engine.ending(turn) is not None)
    assert engine.stats().free_blocks == 0
    assert not works_in_advance(engine)
    assert engine.stats().evictions_total == {}
    assert engine.view("b").blocks == 2


def test_cached_blocks_are_not_taken_for_it(make_engine) -> None:
    engine = make_engine(num_blocks=4)
    engine.open("b")
    engine.turn("b", [2] * 31, max_output_tokens=2)
    engine.close("b")
    engine.open("a")
    turn = engine.submit("a", [1] * 25, draft_ids=HEADER)
    engine.step_until(lambda: engine.ending(turn) is not None)
    assert (engine.stats().free_blocks, engine.stats().cached_blocks) == (0, 2)
    assert not works_in_advance(engine)
    assert engine.stats().cached_blocks == 2


def test_a_context_is_not_computed_beyond_the_models_length(make_engine) -> None:
    engine = make_engine(max_model_len=27)
    ids = answered(engine)
    assert len(ids) == 26
    assert context_of(engine).drafted == 1
    turn = engine.turn("a", HEADER[:1], max_output_tokens=1)
    assert isinstance(engine.ending(turn), TurnFailed), "one more token has no place"


def test_a_context_that_owes_more_than_the_model_takes_is_left_alone(make_engine) -> None:
    engine = make_engine(max_model_len=28)
    engine.open("a")
    turn = engine.submit("a", [1] * 20, draft_ids=HEADER)
    engine.step_until(lambda: engine.ending(turn) is not None)
    assert len(context_of(engine).ids) == 30
    assert not works_in_advance(engine)


# --- commands while drafts are there


def test_a_refused_turn_leaves_the_drafts(make_engine) -> None:
    engine = make_engine(num_blocks=8)
    answered(engine)
    refused = engine.turn("a", [1] * 200)
    assert isinstance(engine.ending(refused), TurnFailed)
    assert cost(engine, "a", [*HEADER, 7]) == 1


def test_a_waiting_turn_that_took_the_drafts_may_lose_all_kv(make_engine) -> None:
    engine = make_engine(num_blocks=8, max_num_seqs=1)
    ids = answered(engine)
    engine.open("b")
    engine.submit("b", [2] * 110)
    turn = engine.submit("a", [*HEADER, 7])
    engine.run()
    assert engine.stats().evictions_total == {"drop": 2}
    assert engine.kept(turn)[:-2] == reply_to(engine, [*ids, *HEADER, 7])


def test_a_preempted_turn_that_took_the_drafts_goes_on_as_if_it_was_not(make_engine) -> None:
    engine = make_engine(num_blocks=8)
    ids = answered(engine)
    engine.open("b")
    older = engine.submit("b", [2] * 60, max_output_tokens=50, stop_ids=[])
    turn = engine.submit("a", [*HEADER, 7], max_output_tokens=20, stop_ids=[])
    engine.run()
    assert engine.stats().preemptions_total == 1
    assert isinstance(engine.ending(turn), type(engine.ending(older)))
    assert engine.kept(turn)[:-2] == expected_reply(
        [*ids, *HEADER, 7], draw=engine.draw, max_output_tokens=20, stop_ids=()
    )


def test_a_step_in_advance_that_fails_costs_its_kv_and_no_turn(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", [1] * 20, draft_ids=HEADER)
    engine.step_until(lambda: engine.ending(turn) is not None)
    told = list(engine.events[turn])
    engine.model.fail_at.add(engine.model.steps + 1)
    engine.run()
    assert engine.events[turn] == told
    assert engine.stats().active_blocks == engine.stats().cached_blocks == 0
    ids = list(context_of(engine).ids)
    more = engine.turn("a", [*HEADER, 7])
    assert engine.kept(more)[:-2] == reply_to(engine, [*ids, *HEADER, 7])


def test_a_turn_that_only_prefills_is_expected_to_go_on_too(engine: Engine) -> None:
    engine.open("a")
    done = engine.turn("a", [1] * 20, generate=False, close_ids=[], draft_ids=HEADER)
    assert isinstance(engine.ending(done), TurnDone)
    assert cost(engine, "a", [*HEADER, 7]) == 1


def test_ids_of_specials_have_no_text() -> None:
    """Guards this module: HEADER is none of the ids that replies are made of."""
    assert all(FakeText().token_bytes(token) == b"" for token in [*HEADER, *OTHER])
