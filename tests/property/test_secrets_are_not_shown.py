"""No word of a password reaches a finding, an error, a log line, an answer or a trace, however its line is spelled."""

import io
import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.config.lint import findings_of, load_checked
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.properties import load
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask, configure_logging
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.connect_mirror_maker import announce, secrets_of
from tests.property.effort import examples
from tests.unit.rest.paper_worker import CONFIG, NAME, PaperWorker

WORDS: Final = ("hunt3r2x", "tr0ub4dor", "st4plegun9", "Zwölfkämpfer", "ÞrettÁndi9", "x7Qz81kk")
"""No message of ours has one of these, or a part of four characters of it."""

SIGNS: Final = ('"', "'", ";", "=", "\\", "\\\\", " ", "\t", ",", "#", "$", "{", "}", "/", "//", "/*", ":", ".", "!", "")  # fmt: skip


def joined(words: list[str], signs: list[str]) -> str:
    """Return words with a sign behind each."""
    return "".join(f"{word}{sign}" for word, sign in zip(words, signs, strict=False))


passwords = st.builds(
    joined,
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.lists(st.sampled_from(SIGNS), min_size=4, max_size=4),
).flatmap(lambda text: st.sampled_from([text, f'"{text}"', f"'{text}'", f" {text}", f"{text};"]))

PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
LINES: Final[Mapping[str, str]] = {
    "quoted": f'A.sasl.jaas.config = {PLAIN} required username="u" password="{{}}";',
    "quoted once, and without an end": f'A.sasl.jaas.config = {PLAIN} required password="{{}}"',
    "unquoted": f"A.sasl.jaas.config = {PLAIN} required username=u password={{}};",
    "in single quotes": f"A.sasl.jaas.config = {PLAIN} required username='u' password='{{}}';",
    "first": f'A.sasl.jaas.config = {PLAIN} required password={{}} username="u";',
    "without a flag": f'A.sasl.jaas.config = {PLAIN} username="u" password="{{}}";',
    "of another class": 'A.sasl.jaas.config = com.x.OwnLoginModule required password="{}";',
    "two modules": f'A.sasl.jaas.config = {PLAIN} required password="{{}}"; {PLAIN} required;',
    "alone": "A.sasl.jaas.config = {}",
    "a store": "A.ssl.keystore.password = {}",
    "of a secret nobody knows": "A.producer.own.api.key = {}",
    "of a key with a wrong letter": "A.ssl.truststore.pasword = {}\\x",
    "of a line under a wrong key": 'A.sasl.jass.config = x.OwnLoginModule required key="{}\\x";',
}
OTHERS: Final = (
    "A.security.protocol = {}",
    "A.sasl.mechanism = {}",
    "A.ssl.endpoint.identification.algorithm = {}",
    "A.producer.acks = {}",
    "A.producer.max.in.flight.requests.per.connection = {}",
    "A.consumer.isolation.level = {}",
    "tasks.max = {}",
    "topics = {}",
    "A->B.replication.factor = {}",
    "A->B.replication.policy.separator = {}",
    "topic.filter.class = {}",
    "rest.port = {}",
    "A.bootstrap.servers = {}",
)
"""No place for a password: it is put there by a provider."""
HEAD: Final = (
    "clusters = A, B\nA.bootstrap.servers = h:1\nB.bootstrap.servers = h:2\nA->B.enabled = true\n"
    "config.providers = env\nA.security.protocol = SASL_SSL\nA.sasl.mechanism = PLAIN\n"
    "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
)


def written(text: str) -> str:
    """Return a text as a properties file writes it."""
    return "".join(it if it.isascii() and it not in "\\\t" else f"\\u{ord(it):04x}" for it in text)


def shown(file: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what a reader of lint, a start, its log and its trace sees."""
    config = MirrorMakerConfig(load(file), CONNECTORS, environ=environ)
    findings = findings_of(config)
    yield from (it.describe(config.path) for it in findings)
    stream, mask = io.StringIO(), SecretMask(secrets_of(config))
    configure_logging(stream, mask, debug=True)
    try:
        announce(config, config.flows([]), findings)
        load_checked(file, CONNECTORS, environ=environ)
    except ConfigError as error:
        logging.getLogger(__name__).exception("the start is refused")
        yield "".join(traceback.format_exception(error))
    yield stream.getvalue()


def parts_of(password: str) -> set[str]:
    """Return each piece of four characters of the words of a password."""
    return {
        word[at : at + 4]
        for word in re.findall(r"\w{4,}", password)
        for at in range(len(word) - 3)
    }  # fmt: skip


def look(line: str, password: str, environ: Mapping[str, str]) -> None:
    handlers = list(logging.getLogger().handlers)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "mm2.properties"
        file.write_text(f"{HEAD}{line}\n", encoding="latin-1")
        try:
            # The folder's name is random, and may have four characters of a word.
            texts = [text.replace(folder, "") for text in shown(file, environ)]
        finally:
            logging.getLogger().handlers[:] = handlers
    for part in parts_of(password):
        assert not [text for text in texts if part.lower() in text.lower()], part


@pytest.mark.parametrize("spelling", LINES)
@settings(max_examples=examples(2))
@given(passwords)
@example('"hunt3r2x"')
@example("hunt3r2x;tr0ub4dor")
@example("hunt3r2x\\x7Qz81kk")
def test_no_part_of_a_password_is_shown_wherever_it_is_from(spelling: str, password: str) -> None:
    line = LINES[spelling]
    look(line.format(written(password)), password, {})
    look(line.format("${env:PW}"), password, {"PW": password})
    key, _, value = line.partition(" = ")
    look(f"{key} = ${{env:PW}}", password, {"PW": value.format(password)})


@pytest.mark.parametrize("line", OTHERS)
@settings(max_examples=examples(1))
@given(passwords)
@example("hunt3r2x")
@example("*hunt3r2x")
@example("com.HunT3r2x.x7Qz81kk")
def test_no_part_of_a_providers_values_is_shown_of_any_property(line: str, password: str) -> None:
    look(line.format("${env:PW}"), password, {"PW": password})


def test_answers_over_rest_have_no_part_of_a_password() -> None:
    chosen = ('hunt3r2x" tr0ub4dor', '"st4plegun9"', "x7Qz81kk;hunt3r2x", "a\\hunt3r2x=x7Qz81kk")
    with PaperWorker(dedicated=True) as worker:
        for password in chosen:
            for line in LINES.values():
                key, _, value = line.format(password).partition(" = ")
                config = {**CONFIG, key.replace("A.", "source.cluster."): value}
                for method, path, body in (
                    ("PUT", f"/connector-plugins/{NAME}/config/validate", config),
                    ("PATCH", "/flows/A-%3EB?dry_run=true", {"config": config}),
                    ("PATCH", "/flows/A-%3EB", {"config": config}),
                    ("PUT", f"/A/B/connectors/{NAME}/config", config),
                    ("GET", "/flows/A-%3EB", None),
                    ("GET", "/flows/A-%3EB/config", None),
                    ("GET", "/flows/A-%3EB/history", None),
                ):
                    answer = worker.send(httpx.Request(method, f"http://w{path}", json=body))
                    assert answer.status_code != 500
                    assert not [
                        it for it in parts_of(password) if it.lower() in answer.text.lower()
                    ], answer.text
