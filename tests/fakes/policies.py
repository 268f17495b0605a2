"""Context policies that tests can tell what to do."""

from dataclasses import replace

from policies.plan import KeepAll, KeepTurns, Summarize
from policies.summarize import Compaction
from policies.toolkit import ParameterError


class Window:
    """Drops the oldest turns until 80 % of the limit are enough."""

    def plan(self, view):
        if view.needed_tokens <= view.limit_tokens:
            return KeepAll()
        kept = list(range(len(view.turns)))
        turns = list(view.turns)
        while turns and replace(view, turns=turns).needed_tokens > view.limit_tokens * 8 // 10:
            turns.pop(0)
            kept.pop(0)
        fits = replace(view, turns=turns).needed_tokens <= view.limit_tokens
        return KeepTurns(turns=kept, summary=fits)


class Scripted:
    """Plans what the test says next, then keeps all. `views`: what it was shown."""

    def __init__(self):
        self.plans, self.views = [], []

    def plan(self, view):
        self.views.append(view)
        return self.plans.pop(0) if self.plans else KeepAll()


class Summarizing:
    """Wants a summary of all but the last turn when the window is full."""

    summarizes = True

    def plan(self, view):
        if view.needed_tokens <= view.limit_tokens:
            return KeepAll()
        return Summarize(keep_last=1, summary_tokens=100, fallback=Window().plan(view))


class Shelf:
    """The policies of a world, by name."""

    def __init__(self):
        self.scripted = Scripted()
        self._policies = {
            "sliding_window": Window(),
            "scripted": self.scripted,
            "summarize": Summarizing(),
        }

    def __call__(self, name, parameters):
        if name == "compaction":
            return Compaction(**parameters)
        if name not in self._policies:
            raise ParameterError("type", name, ", ".join(self._policies))
        return self._policies[name]
