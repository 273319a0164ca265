"""What Kafka's own class makes of JAAS texts, and the JVM's of JAAS files, beside what we make of them."""

import random
from pathlib import Path

import pytest

from mm2py.config.jaas import LoginModule, login_of_file, parse_jaas
from mm2py.errors import ConfigError
from tests.kit.kafka.java import compile_java, run_java

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
        return in_hex(parse_jaas(text))
    except ConfigError:
        return "-"


def in_hex(found: LoginModule) -> str:
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


KRB5 = "com.sun.security.auth.module.Krb5LoginModule"
FILES = [
    f"""KafkaClient {{
    {KRB5} required
    useKeyTab=true
    keyTab="/tmp/mirrormaker.keytab"
    storeKey=true
    useTicketCache=false
    serviceName="kafka"
    principal="mirrormaker/HOSTNAME@EXAMPLE.COM";
}};
""",
    f'Client {{ a.B required x="y"; c.D optional; }};\nKafkaClient {{ {KRB5} sufficient; }};',
    f"KafkaClient {{ {KRB5} REQUIRED debug=true client=TRUE; }}; Other {{ a.B required; }};",
    f'// c\n/* d */ KafkaClient {{ {MODULE} required username="a b" password="x=;,#}}"; }};',
    f'KafkaClient {{ {MODULE} required username="a\\"b" password="\\n\\101"; }};',
    f"KafkaClient {{ {KRB5} required; {KRB5} required; }};",
    f"KafkaClient {{ {KRB5} required }};",
    f"KafkaClient {{ {KRB5} maybe; }};",
    f"KafkaClient {{ {KRB5} required; ",
    f"KafkaClient {{ {KRB5} required keyTab=/tmp/x; }};",
    f"KafkaClient {{ {KRB5} required keyTab=; }};",
    f"KafkaServer {{ {KRB5} required; }};",
    "KafkaClient { };",
    "",
]


def test_files_mean_what_they_mean_to_the_jvm(tmp_path: Path) -> None:
    compile_java([SOURCE.with_name("JaasFileTruth.java")], tmp_path)
    lines = "".join(text.encode().hex() + "\n" for text in FILES)
    answers = run_java("JaasFileTruth", classpath=[tmp_path], stdin=lines).check().splitlines()
    file = tmp_path / "jaas.conf"

    def of_file(text: str) -> str:
        file.write_text(text, encoding="utf-8")
        try:
            found = login_of_file({"KAFKA_OPTS": f"-Djava.security.auth.login.config={file}"})
        except ConfigError:
            return "-"
        assert found is not None
        return in_hex(found)

    assert [of_file(text) for text in FILES] == answers
    assert sum(answer != "-" for answer in answers) == 5
