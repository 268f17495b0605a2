"""Who plays when."""

from benchmarks.schedule import OURS, PARTS, PEERS, Play, schedule

ALL = (*OURS, *PEERS)


def test_servers_alternate_within_a_repetition_and_another_one_begins_each_time():
    plays = schedule(3, ["W1"], ["sessiond", "llama-q4_0", "vllm-bf16"])
    servers = [play.server for play in plays]
    assert servers[:3] == ["sessiond", "llama-q4_0", "vllm-bf16"]
    assert servers[3:6] == ["llama-q4_0", "vllm-bf16", "sessiond"]
    assert sorted(servers[6:]) == sorted(servers[:3])
    assert [play.repetition for play in plays] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_what_takes_long_is_played_less_often_unless_asked_for():
    def count(**how):
        return schedule(3, PARTS, ALL, **how).count(Play(1, "W4", "sessiond"))

    assert (count(), count(thorough=True)) == (0, 1)


def test_a_poor_setting_plays_only_when_all_is_asked_for():
    play = Play(0, "W2", "llama-q4_1")
    assert play not in schedule(1, PARTS, ALL)
    assert play in schedule(1, PARTS, ALL, thorough=True)


def test_whoever_is_left_out_does_not_play():
    plays = schedule(1, ["W1", "W2"], ["sessiond"])
    assert {(play.workload, play.server) for play in plays} == {
        ("W1", "sessiond"),
        ("W2", "sessiond"),
    }


def test_servers_share_messages_and_repetitions_do_not():
    seeds = {play.seed for play in schedule(2, ["W1"], ALL)}
    assert len(seeds) == 2


def test_ours_plays_every_workload_whenever_a_peer_does():
    plays = schedule(4, PARTS, ALL)
    for play in plays:
        assert any(
            other.server in OURS
            and (other.workload, other.repetition) == (play.workload, play.repetition)
            for other in plays
        )
