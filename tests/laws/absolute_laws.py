"""What differs where K lies at its position: an edit moves KV up, so no part of a block is lost."""

from engine.ipc.messages import Sampling
from tests.laws.edit_laws import EditLaws, Played


class AbsoluteLaws(EditLaws):
    """`backend.position_free` is the same model without positions in its KV."""

    def test_parts_of_blocks_that_take_the_whole_pool_are_rebuilt_exact(
        self, sampling: Sampling
    ) -> None:
        """Not here: the pool is as full as the ids are many."""
        with self.engine(num_blocks=9) as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            played.edit([(at, at + 10) for at in range(6, 106, 16)][: len(played.right.ids) // 16])
            assert engine.view("a").blocks == -(-(len(played.right.ids) - 2) // 16)
            played.turn(40, 2)

    def test_what_a_fork_shares_is_copied_and_the_rest_moves_in_its_own_blocks(
        self, sampling: Sampling
    ) -> None:
        with self.engine(num_blocks=20) as engine:
            played = Played(self, engine, sampling)
            played.turn(90, 0)
            ids = list(played.right.ids)
            engine.fork("b", "a", len(ids))
            played.edit([(25, 60)])
            played.turn(20, 1)
            played.edit([(25, 40)])
            played.turn(20, 2)
            more = self.prompt(5, 7)
            assert self.turn(engine, "b", more, sampling) == self.expected(ids + more, sampling)
