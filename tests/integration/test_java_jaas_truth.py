"""What Kafka's own class makes of JAAS texts, beside what we make of them."""

import random
from pathlib import Path

import pytest

from mm2py.config.jaas import parse_jaas
from mm2py.embedded.java import compile_java, run_java
from mm2py.errors import ConfigError

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SOURCE = Path(__file__).parents[1] / "java" / "JaasTruth.java"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
TOKENS = [
    MODULE, "required", "optional", "username", "password", "=", ";", " ", "  ", "\n", '"a b"', "'q'",
    '"x\\"y"', '"\\n\\t\\\\"', '"\\101"', '"\\777"', '"=;,"', '"ü€"', "word-1", "a.b$c_d", "12", "-", "-5", ".",
    "// c\n", "/* c */", "/", "#", "é", '"open', "'", "k=v", 'p="v"', "a1=b2", "tr\\ue", "x@y", '"a\nb"',
]  # fmt: skip
WHOLE = [
    f'{MODULE} required username="u" password="p\\"=;,#";',
    f"{MODULE} required username='u' password=\"it's\" ;",
    f"{MODULE} Required a=b // c\n;",
    f"{MODULE} required a=1;",
    f"{MODULE} required a = b c=d ; ",
    f"{MODULE} required ; {MODULE} required;",
]


def ours(text: str) -> str:
    try:
        found = parse_jaas(text)
    except ConfigError:
        return "-"
    words = [found.name, *(word for pair in sorted(found.options.items()) for word in pair)]
    return " ".join(f"x{word.encode().hex()}" for word in words)


def test_texts_mean_what_they_mean_to_kafka(tmp_path: Path) -> None:
    compile_java([SOURCE], tmp_path)
    dice = random.Random(7)
    texts = list(WHOLE)
    for _ in range(4_000):
        body = "".join(dice.choice(TOKENS) for _ in range(dice.randrange(9)))
        texts.append(f"{MODULE} required {body}{dice.choice(['', ';', ' ;'])}")
    lines = "".join(text.encode().hex() + "\n" for text in texts)
    answers = run_java("JaasTruth", classpath=[tmp_path], stdin=lines).check().splitlines()
    assert len(answers) == len(texts)
    different = [
        (text, theirs, ours(text))
        for text, theirs in zip(texts, answers, strict=True)
        if theirs != ours(text)
    ]
    assert not different, f"{len(different)}: {different[:12]}"
    assert sum(answer != "-" for answer in answers) > 200
