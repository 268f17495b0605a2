"""Commands on contexts, questions, and steps of the loop."""

import pytest

from engine.ipc.messages import Edit, TurnFailed, TurnIncomplete
from tests.fakes.fake_model import expected_reply
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine


def context_ids(engine: Engine, session: str) -> list[int]:
    return engine.loop.memory.contexts[session].ids


def test_an_idle_loop_does_nothing(engine: Engine) -> None:
    assert not engine.loop.has_work
    assert engine.loop.step() is False
    assert engine.stats().step_times.count == 0


def test_a_turn_is_one_step_per_chunk_and_per_token(make_engine) -> None:
    engine = make_engine(max_num_batched_tokens=32, idle_prefill=False)
    engine.open("a")
    engine.submit("a", [1] * 70, max_output_tokens=5)
    assert engine.loop.has_work
    engine.run()
    assert engine.stats().step_times.count == 3 + 4
    assert engine.stats().step_times.total > 0
    assert engine.stats().running == engine.stats().waiting == 0


def test_setting_a_context_replaces_it_and_gives_its_blocks_back(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 40)
    engine.open("a", [5, 6, 7])
    assert engine.stats().active_blocks == 0
    assert context_ids(engine, "a") == [5, 6, 7]
    assert engine.view("a").kept_len == 0


def test_the_senders_list_is_not_the_contexts(engine: Engine) -> None:
    sent = [1, 2, 3]
    engine.open("a", sent)
    engine.turn("a", [4])
    sent.append(9)
    assert context_ids(engine, "a")[:4] == [1, 2, 3, 4]
    assert sent == [1, 2, 3, 9]


@pytest.mark.parametrize("command", ["open", "truncate", "fork over it"])
def test_a_context_that_changes_loses_its_turn_first(engine: Engine, command: str) -> None:
    engine.open("a", [1] * 20)
    engine.open("b", [2] * 20)
    turn = engine.submit("a", [3] * 20)
    engine.step(2)
    match command:
        case "open":
            engine.open("a", [9])
        case "truncate":
            engine.truncate("a", 1)
        case _:
            engine.fork("a", "b", 1)
    cut = engine.ending(turn)
    assert isinstance(cut, TurnIncomplete)
    assert (cut.reason, cut.rolled_back) == ("cancelled", True)
    assert engine.view("a").tokens == 1
    assert not engine.loop.has_work


def test_releasing_gives_all_kv_back_and_keeps_the_ids(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 40)
    ids = list(context_ids(engine, "a"))
    engine.release("a")
    assert engine.stats().active_blocks == 0
    assert context_ids(engine, "a") == ids
    assert engine.started(engine.turn("a", [2])).reused_tokens == 48, "full blocks still hit"


def test_releasing_a_session_whose_turn_has_not_ended_does_nothing(engine: Engine) -> None:
    engine.open("a")
    turn = engine.submit("a", [1] * 40)
    engine.step(2)
    held = engine.view("a").blocks
    engine.release("a")
    assert engine.view("a").blocks == held
    engine.run()
    assert engine.ending(turn).counts.output_tokens == 8


def test_closing_cancels_the_turn_and_forgets_the_session(engine: Engine) -> None:
    engine.open("a", [1] * 20)
    turn = engine.submit("a", [3] * 20)
    engine.step(2)
    engine.close("a")
    assert engine.ending(turn).rolled_back
    assert not engine.view("a").known
    assert engine.stats().active_blocks == 0
    assert engine.stats().contexts == 0
    engine.close("a")


@pytest.mark.parametrize("command", ["never set", "closed", "truncated too long", "forked"])
def test_a_turn_on_an_unknown_session_asks_for_its_ids(engine: Engine, command: str) -> None:
    match command:
        case "closed":
            engine.open("a")
            engine.close("a")
        case "truncated too long":
            engine.open("a", [1, 2, 3])
            engine.truncate("a", 4)
        case "forked":
            engine.open("parent", [1, 2, 3])
            engine.fork("a", "parent", 4)
            engine.fork("a", "nobody", 0)
        case _:
            engine.truncate("a", 0)
            engine.release("a")
    failed = engine.ending(engine.submit("a", [1]))
    assert isinstance(failed, TurnFailed)
    assert failed.code == "engine_restarted"
    assert not engine.loop.has_work


def test_a_fork_shares_blocks_and_copies_the_tail_when_it_is_written(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 40)
    before = engine.stats().active_blocks
    engine.fork("b", "a", 40)
    assert engine.stats().active_blocks == before
    assert engine.view("b").shared_blocks == 3
    assert engine.model.copies == []
    turn = engine.turn("b", [2] * 4)
    assert len(engine.model.copies) == 1
    assert engine.view("b").shared_blocks == 2
    assert engine.started(turn).reused_tokens == 40
    engine.close("a")
    assert engine.kept(engine.turn("b", [3] * 4))[:-2] == expected_reply(
        context_ids(engine, "b")[:-10], draw=engine.draw, max_output_tokens=8
    )


def test_a_fork_of_itself_is_no_copy_of_anything(engine: Engine) -> None:
    engine.open("a", [1] * 20)
    engine.fork("a", "a", 10)
    assert engine.ending(engine.submit("a", [1])).code == "engine_restarted"


def test_a_fork_of_a_running_session_sees_only_what_is_committed(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 20)
    committed = list(context_ids(engine, "a"))
    running = engine.submit("a", [2] * 20)
    engine.step(2)
    engine.fork("b", "a", len(committed))
    engine.fork("c", "a", len(committed) + 1)
    assert context_ids(engine, "b") == committed
    assert not engine.view("c").known
    forked = engine.submit("b", [3] * 20)
    engine.run()
    for turn, prompt in [(running, [2] * 20), (forked, [3] * 20)]:
        assert engine.kept(turn)[:-2] == expected_reply(
            committed + prompt, draw=engine.draw, max_output_tokens=8
        )


def test_a_rewind_frees_what_is_not_shared_at_once(engine: Engine) -> None:
    engine.open("a")
    engine.turn("a", [1] * 100)
    engine.fork("b", "a", 64)
    engine.truncate("a", 33)
    stats = engine.stats()
    assert engine.view("a").blocks == 3
    assert stats.active_blocks == 4, "the fork's fourth block survives"


def test_what_one_tenant_computed_is_not_found_by_another(engine: Engine) -> None:
    engine.open("a", salt=b"one")
    engine.open("b", salt=b"other")
    engine.open("c", salt=b"one")
    engine.turn("a", [1] * 40)
    assert engine.started(engine.turn("b", [1] * 40)).reused_tokens == 0
    assert engine.started(engine.turn("c", [1] * 40)).reused_tokens == 32


def test_the_last_prompt_token_is_computed_even_if_all_of_it_is_cached(engine: Engine) -> None:
    engine.open("a")
    engine.open("b")
    reply = engine.kept(engine.turn("a", [1] * 32))
    turn = engine.turn("b", [1] * 32)
    assert engine.started(turn).reused_tokens == 16
    assert engine.kept(turn) == reply


def test_the_view_of_a_session_shows_its_page_table(make_engine) -> None:
    engine = make_engine(idle_prefill=False)
    engine.open("a")
    engine.turn("a", [1] * 20, max_output_tokens=4)
    engine.fork("b", "a", 16)
    view = engine.view("a")
    assert (view.known, view.running, view.tokens, view.kept_len) == (True, False, 26, 23)
    assert (view.blocks, view.shared_blocks, view.kv_bytes) == (2, 1, 2 * KV_BYTES_PER_BLOCK)
    first, second = view.page_table
    assert (first.first, first.last, first.base, first.references) == (0, 15, 0, 2)
    assert (second.first, second.last, second.base, second.references) == (0, 6, 16, 1)
    assert first.hashed
    assert not second.hashed
    assert engine.view("nobody").tokens == 0


def test_running_and_waiting_turns_are_counted(make_engine) -> None:
    engine = make_engine(max_num_seqs=2)
    for session in "abc":
        engine.open(session)
        engine.submit(session, [1])
    assert (engine.stats().running, engine.stats().waiting) == (0, 3)
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)
    assert engine.view("a").running
    engine.run()


def test_prefix_cache_counts_what_was_asked_and_what_hit(engine: Engine) -> None:
    for session in "ab":
        engine.open(session)
        engine.turn(session, [1] * 40)
    assert engine.stats().prefix_queries_total == 80
    assert engine.stats().prefix_hits_total == 32


def test_an_edit_hashes_no_block_of_which_another_context_holds_more(make_engine) -> None:
    """Two sessions drew the same tokens at once, so that one's full block is not hashed."""
    engine = make_engine()
    for session in "ab":
        engine.open(session)
    for session in "ab":
        engine.submit(session, range(40, 50), max_output_tokens=20, stop_ids=[])
    engine.run()
    unhashed = next(s for s in "ab" if not engine.view(s).page_table[0].hashed)
    engine.fork("c", unhashed, 3)
    engine.edit("c", Edit(at=3, dropped=((0, 1), (2, 3))))
    engine.check()
    assert engine.view("c").page_table[0].block == engine.view(unhashed).page_table[0].block
