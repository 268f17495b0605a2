"""The policy that docs/policies.md builds, held to the laws as it says."""

import re
from pathlib import Path

from policies.plan import KeepTurns
from tests.policies.context_laws import ContextLaws
from tests.policies.test_context_policies import view

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
CODE, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def names(code: str, **given: object) -> dict[str, object]:
    found = dict(given)
    exec(compile(code, "docs/policies.md", "exec"), found)
    return found


EXAMPLE = names(CODE, __name__="first_and_newest")["FirstAndNewest"]
TestFirstAndNewest = names(
    TEST, __name__=__name__, ContextLaws=ContextLaws, FirstAndNewest=EXAMPLE
)["TestFirstAndNewest"]


def test_the_first_turn_stays() -> None:
    plan = EXAMPLE().plan(view(*[100] * 12))
    assert plan == KeepTurns(turns=(0, 6, 7, 8, 9, 10, 11))
