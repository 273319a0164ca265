"""docs/reference/config.md is what the declarations say, and names every property."""

from pathlib import Path

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.definitions import options_of
from mm2py.config.worker import WorkerConfig
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.config_commands import reference_text

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "config.md"


def test_the_committed_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_text(), (
        "python -m mm2py_workers.config_commands > docs/reference/config.md"
    )


def test_the_page_names_every_property() -> None:
    page = reference_text()
    names = [*CLIENT_OPTIONS, *options_of(WorkerConfig)]
    for definition in CONNECTORS:
        names += options_of(definition.model)
    assert not [name for name in names if f"`{name}`" not in page]


def test_the_page_shows_javas_default_beside_ours() -> None:
    assert (
        "| `refresh.topics.interval.seconds` | long, >= 1 s | `5`; Java: 600 |" in reference_text()
    )
