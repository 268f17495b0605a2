"""The examples in the READMEs beside the packages give what is written there."""

import doctest

import pytest

from tests.docs.blocks import ROOT, code_blocks
from tests.docs.test_names_of_code import READMES

WITH_EXAMPLES = [page for page in READMES if ">>>" in (ROOT / page).read_text(encoding="utf-8")]


def failures_of(text, page):
    """What a run of the examples reports, as text."""
    said = []
    example = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_examples_are_true(page):
    assert failures_of("\n".join(code_blocks(page, "python")), page) == ""


def test_a_wrong_example_is_found():
    assert "Expected:" in failures_of(">>> 1 + 1\n3\n", "page")


def test_most_packages_have_an_example():
    assert len(WITH_EXAMPLES) >= 15
