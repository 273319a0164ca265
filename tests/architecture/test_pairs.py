"""tests/PAIRS.md: each pair of features is there once, and each test that it names exists."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Final

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
