"""What the README and the guides say is there, is there."""

import re
import subprocess

import pytest
import typer.main

from sessiond.__main__ import build_cli
from tests.docs.blocks import ROOT, code_blocks
from tests.docs.test_names_of_code import READMES

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/LOG.md"]
PAGES += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES += READMES


def tracked_files():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return listed.stdout.splitlines()


def folders_on_disk():
    """Top folders, and those inside the packages."""
    parts = [path.split("/")[:-1] for path in tracked_files()]
    packages = {"sessiond", "engine", "tests"}
    tops = {f"{folders[0]}/" for folders in parts if folders}
    return tops | {f"{f[0]}/{f[1]}/" for f in parts if len(f) > 1 and f[0] in packages}


def folders_of_the_tree():
    (tree,) = code_blocks("README.md", "text")[-1:]
    folders, top = set(), ""
    for line in tree.splitlines():
        name = line.split()[0]
        assert len(line.split()) > 1, f"no description: {line}"
        if line.startswith(" "):
            folders.add(top + name)
        else:
            top = name
            folders.add(name)
    return folders


def test_tree_has_one_line_per_folder():
    assert folders_of_the_tree() == folders_on_disk()


def written_commands():
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    inline = re.findall(r"`([^`\n]+)`", text)
    indented = re.findall(r"^(?:    |\$ )(.+)$", text, re.MULTILINE)
    return inline + indented


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {
        match[1] for text in written_commands() if (match := re.match(r"make ([a-z-]+)\b", text))
    }
    assert {"serve", "test", "check", "bench"} <= named
    assert named <= targets


def test_every_sessiond_command_and_flag_that_is_named_exists():
    commands = typer.main.get_command(build_cli())
    named = [text.split() for text in written_commands() if text.startswith("sessiond ")]
    assert named
    for _, *words in named:
        command, known = commands, {"--help", "--version"}
        for word in words:
            if word.startswith("--"):
                assert word in known, f"{word} in {words}"
            elif hasattr(command, "commands") and "|" not in word:
                assert word in command.commands, f"{word} in {words}"
                command = command.commands[word]
                known |= {f for p in command.params for f in [*p.opts, *p.secondary_opts]}


def anchors_of(path):
    """Of each heading, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if not target.startswith("http"):
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), target
            assert not anchor or anchor in anchors_of(path), f"{target}#{anchor}"
