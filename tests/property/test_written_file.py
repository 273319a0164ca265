"""What is written as a properties file is read back as it was put."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.config.properties import parse
from mm2py_migrate.written_file import WrittenFile

# Latin-1, and characters of more than one byte; a lone surrogate is no character of a YAML or properties file.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=8))
def test_any_keys_and_values_are_read_back(entries: dict[str, str]) -> None:
    file = WrittenFile()
    file.comment("a comment\nof two lines")
    for key, value in entries.items():
        file.put(key, value)
    assert parse(file.done().text.encode("latin-1")).values == entries
