"""Documents name tests as proof, pages, headings and files: all of them exist; each pair of features is there once."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

from mm2py.clock import SystemClock

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("tests/*.md"),
    ]
)
NAMED: Final = re.compile(r"`(test_\w+)`")
DEFINED: Final = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
QUARANTINED: Final = re.compile(r'mark\.quarantine\(\s*"[^"]+",\s*"(\d{4}-\d\d-\d\d)"')
PAGE: Final = re.compile(r"\bdocs/[\w./-]+\.md\b")


def test_every_test_that_a_document_names_exists() -> None:
    named = {name for file in DOCUMENTS for name in NAMED.findall(file.read_text("utf-8"))}
    tests = (file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = {name for text in tests for name in DEFINED.findall(text)}
    assert named - defined == set()
    assert named


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(it.relative_to(ROOT)) for it in DOCUMENTS])
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(document: Path) -> None:
    links = LINK.findall(_prose(document))
    assert [link for link in links if not _resolves(document, link)] == []


def test_quarantine_is_short_and_few_are_in_it() -> None:
    marks = [
        (file.name, date.fromisoformat(found))
        for file in (ROOT / "tests").rglob("test_*.py")
        if file.name != "test_kit.py"
        for found in QUARANTINED.findall(file.read_text("utf-8"))
    ]
    assert len(marks) <= 10
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, tz=UTC)
    long_ago = now.date() - timedelta(days=14)
    assert [name for name, since in marks if since < long_ago] == []


def test_every_page_that_the_code_names_exists() -> None:
    files = (it for folder in ("mm2py", "workers", "jobs", "migrate", "connectors", "tests", "examples", "bench") for it in (ROOT / folder).rglob("*.py"))  # fmt: skip
    named = {page for file in files for page in PAGE.findall(file.read_text("utf-8"))}
    assert {page for page in named if not (ROOT / page).exists()} == set()
    assert named


def _prose(document: Path) -> str:
    return re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)


def _resolves(document: Path, link: str) -> bool:
    if re.match(r"https?:", link):
        return True
    path, _, heading = link.partition("#")
    page = (document.parent / path).resolve() if path else document
    return page.exists() and (not heading or heading in _anchors(page))


def _anchors(page: Path) -> Iterator[str]:
    """Yield the anchors that GitHub makes of a page's headings."""
    for heading in re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# -- tests/PAIRS.md


TESTS: Final = Path(__file__).parent.parent
_TEST: Final = re.compile(r"(\w+)::(\w+)")


def sections() -> dict[str, list[str]]:
    """Return the lines below each feature, in their order."""
    found: dict[str, list[str]] = {}
    for line in (TESTS / "PAIRS.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            found[line[3:]] = []
        elif line.startswith("- "):
            found[list(found)[-1]].append(line[2:])
    return found


def test_each_pair_of_features_is_there_once() -> None:
    pairs: Counter[tuple[str, str]] = Counter()
    found = sections()
    for feature, lines in found.items():
        for line in lines:
            partner, _, rest = line.partition(": ")
            assert rest, f"{feature}: {line}"
            for each in (rest if partner == "open" else partner).split(", "):
                pairs[feature, each] += 1
    assert pairs == Counter(combinations(found, 2))


def test_each_test_that_is_named_exists() -> None:
    for feature, lines in sections().items():
        for file, name in _TEST.findall("\n".join(lines)):
            files = list(TESTS.rglob(f"test_{file}.py"))
            written = [
                re.search(rf"^(async )?def test_{name}\(", it.read_text(), re.M) for it in files
            ]
            assert any(written), f"{feature}: {file}::{name}"
