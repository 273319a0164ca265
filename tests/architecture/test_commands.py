"""Commands and requests that documents, examples, the page and remedies give: each exists, with its options, and a whole one has what it needs."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from mm2py.rest.routes.connectors import ROUTES
from mm2py_cli.app import app

ROOT: Final = Path(__file__).parents[2]
TREE: Final[Any] = get_command(app)
PRODUCT: Final = ("mm2py", "connectors", "workers", "cli", "jobs", "migrate")
TEXTS: Final = [
    *ROOT.glob("*.md"),
    *ROOT.glob("*.yml"),
    *(it for it in ROOT.glob("docs/**/*.md") if it.parent.name != "adr"),
    *(it for it in ROOT.glob("examples/**/*") if it.suffix in {".yaml", ".yml", ".md", ".service"}),
    *ROOT.glob("mm2py/rest/ui/*.js"),
]
SOURCES: Final = [it for folder in PRODUCT for it in (ROOT / folder).rglob("*.py")]
COMMAND: Final = re.compile(r"(?<!runuser -u )\bmm2py ((?:[a-z]|--)[^\n`;|)#<\"]*)")
"""Up to what ends it in a shell, a table or a sentence."""
PLACE: Final = re.compile(r"\$\{[^}]*\}|\{\{[^}]*\}\}")
"""Where a flow's name is put in."""
NAMED: Final = re.compile(r"-|'|FILE\b|\S+\.properties\b|\S+/\S|\S+->\S")
"""What begins the arguments of a command that is written out; other words behind a command's name are a sentence's."""

REQUEST: Final = re.compile(r"\b(GET|PUT|POST|PATCH|DELETE) \S*/connectors/[^\s/]+(/[a-z/]+)")
"""To Connect's API, of one connector."""


def strings(file: Path) -> Iterator[str]:
    """Yield the strings of a module but for docstrings, with a word for what is put into them."""
    tree = ast.parse(file.read_text("utf-8"))
    parts = {id(it) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for it in node.values}  # fmt: skip
    parts |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(it.value) if isinstance(it, ast.Constant) else "PUT-IN" for it in node.values)  # fmt: skip
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.value  # fmt: skip


def lines(file: Path) -> Iterator[tuple[str, bool]]:
    """Yield each line and whether its commands are to be typed as they are: a page's prose shortens them."""
    block = file.suffix != ".md"
    for line in file.read_text("utf-8").replace("\\\n", " ").splitlines():
        block ^= line.startswith("```")
        yield PLACE.sub("PUT-IN", line), block


def wrong(text: str, *, whole: bool) -> Iterator[str]:
    """Yield what is wrong with the commands in a text; of those that are written out ``whole`` also what they lack."""
    for found in COMMAND.findall(text):
        try:
            words = shlex.split(re.split(r", ", found)[0])
        except ValueError:  # a quote that opens is the text's own
            continue
        command: Any = TREE
        path: list[str] = []
        while words and words[0] in getattr(command, "commands", {}):
            path.append(words.pop(0))
            command = command.commands[path[-1]]
        if not path:
            if words[0].startswith("-") and words[0] not in (it for each in TREE.params for it in each.opts):  # fmt: skip
                yield f"{found}: no option of mm2py itself"
            continue
        arguments = found.split(maxsplit=len(path))[len(path) :]
        if command.context_settings.get("ignore_unknown_options") or not any(map(NAMED.match, arguments)):  # fmt: skip
            continue
        options = {"-h", "--help"} | {name for it in command.params for name in (*it.opts, *it.secondary_opts)}  # fmt: skip
        given = [it.split("=")[0].rstrip(".:,") for it in words if it.startswith("-") and it != "-"]
        yield from (f"{found}: no option {name}" for name in given if name not in options)
        for it in command.params if whole else ():
            if it.required and it.param_type_name == "option" and it.opts[0] not in given:
                yield f"{found}: needs {it.opts[0]}"
        needed = sum(1 for it in command.params if it.required and it.param_type_name == "argument")
        if whole and len([it for it in words if not it.startswith("-")]) < needed:
            yield f"{found}: lacks an argument"


def test_commands_of_documents_and_examples_exist_with_their_options() -> None:
    found = [f"{file.relative_to(ROOT)}: {it}" for file in TEXTS for line, block in lines(file) for it in wrong(line, whole=block)]  # fmt: skip
    assert found == []


def test_commands_in_remedies_are_whole() -> None:
    found = [f"{file.relative_to(ROOT)}: {it}" for file in SOURCES for text in strings(file) for it in wrong(text, whole=True)]  # fmt: skip
    assert found == []


def test_requests_to_connectors_are_those_that_a_worker_takes() -> None:
    served = {(method, path.removeprefix("/connectors/{connector}")) for method, path, _ in ROUTES}
    texts = [text for file in SOURCES for text in strings(file)]
    texts += [line for file in TEXTS for line, _ in lines(file)]
    asked = {request for text in texts for request in REQUEST.findall(text)}
    assert ("PATCH", "/offsets") in asked
    assert asked - served == set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("see mm2py failover --status", "needs --flow"),
        ("mm2py --url http://w:1 flow list", "no option of mm2py itself"),
        ("mm2py flow list --fast", "no option --fast"),
        ("mm2py job backfill status 'A->B'", "needs --flow"),
        ("mm2py failover FILE --flow 'A->B' --status shows it, or run mm2py lag --flow A/B", ""),
        ("mm2py verify compares", ""),
    ],
)
def test_what_is_wrong_with_a_command_is_found(text: str, said: str) -> None:
    assert said in next(wrong(text, whole=True), "")
    assert bool(said) == bool([*wrong(text, whole=True)])
