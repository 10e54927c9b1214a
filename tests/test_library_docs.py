"""The examples of docs/rank are run, and fail as the pages say."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from ranks import run_ranks
from test_library_agree import the_error

DOCS = Path(__file__).parent.parent / "docs" / "rank"
PROGRAMS = Path(__file__).parent / "programs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"# train\.py, (\d) ranks?\n")


def find_examples():
    """List (ranks, code, what they raise): a `text` block belongs to the example before it."""
    examples = []
    for page in sorted(DOCS.glob("*.md")):
        blocks = [*FENCE.findall(page.read_text(encoding="utf-8")), ("", "")]
        for number, ((kind, code), (after, text)) in enumerate(pairwise(blocks)):
            head = HEAD.match(code)
            if kind == "python" and head is not None:
                said = text if after == "text" else None
                name = f"{page.stem}-{number}"
                examples.append(pytest.param(int(head[1]), code, said, id=name))
    return examples


def run_example(rank, mail, code, directory):
    names = {"rank": rank, "directory": directory, "__name__": "__main__"}
    exec(compile(code, "train.py", "exec"), names)  # noqa: S102  # that is what it is for


@pytest.mark.parametrize(("size", "code", "text"), find_examples())
def test_example(size, code, text, tmp_path):
    answers = run_ranks(size, run_example, code, str(tmp_path))
    if text is None:
        assert [answer.error for answer in answers] == [None] * size, answers
        return
    raised = [answer for answer in answers if answer.error is not None]
    assert the_error(raised).startswith(text.splitlines()[0])
    for line in text.splitlines():
        assert line in the_error(raised)


def test_every_page_has_an_example_that_was_run():
    pages = {page.stem for page in DOCS.glob("*.md")} - {"README"}
    assert {example.id.rpartition("-")[0] for example in find_examples()} == pages


def quoted(page, title):
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.partition(f"```python\n# {title}\n")[2].partition("```")[0].strip()


@pytest.mark.parametrize(
    ("page", "title", "program"),
    [
        ("run-once.md", "before.py: torch's barrier", "rank_before.py"),
        ("preflight.md", "muon.py", "rank_muon.py"),
    ],
)
def test_what_goes_wrong_is_a_program_that_was_run(page, title, program):
    assert quoted(page, title)
    assert quoted(page, title) in (PROGRAMS / program).read_text(encoding="utf-8")


def test_links_lead_somewhere():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (DOCS / target).exists(), (page, target)
