"""What the JVM and Kafka's own classes make of files, patterns, JAAS texts, configs and values, beside what we make of them."""

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER
from mm2py.config.definitions import Option, options_of
from mm2py.config.jaas import LoginModule, login_of_file, parse_jaas
from mm2py.config.java_regex import JavaPattern
from mm2py.config.mirror_maker import MirrorMakerConfig, is_unusable_converter, option_names
from mm2py.config.old_names import modern_name
from mm2py.config.properties import parse
from mm2py.config.worker import DEDICATED_DEFAULTS
from mm2py.errors import ConfigError
from mm2py.mirror.offset_checks import described_order
from mm2py_connectors.config import CONNECTORS
from tests.kit.kafka.java import compile_java, run_java

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data" / "config"
ANSWERS = DATA / "java_answers.json"
FILES = sorted(DATA.glob("*.properties"))
PATTERNS = (DATA / "patterns.txt").read_text(encoding="utf-8").split("\n")[:-1]
NAMES = (DATA / "names.txt").read_text(encoding="utf-8").split("\n")[:-1]
Answer = dict[str, str] | list[bool] | str


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("classes")
    compile_java(sorted((ROOT / "java").glob("*.java")), into)
    return into


def ask(classes: Path, questions: list[str]) -> list[Answer]:
    done = run_java("ConfigTruth", classpath=[classes], stdin="\n".join(questions) + "\n")
    return [json.loads(line) for line in done.check().splitlines()]


def about_properties(data: bytes) -> str:
    return f"P {data.hex()}"


def about_pattern(pattern: str, names: list[str]) -> str:
    return " ".join(["R", *(text.encode().hex() for text in (pattern, *names))])


def ours_of_properties(data: bytes) -> Answer:
    try:
        return dict(parse(data).values)
    except ConfigError as error:
        return str(error)


def ours_of_pattern(pattern: str, names: list[str]) -> Answer:
    try:
        compiled = JavaPattern(pattern)
        return [compiled.matches(name) for name in names]
    except ConfigError as error:
        return str(error)


@pytest.mark.faults
def test_the_recorded_answers_are_what_this_jvm_says(classes: Path) -> None:
    questions = [about_properties(path.read_bytes()) for path in FILES]
    questions += [about_pattern(pattern, NAMES) for pattern in PATTERNS]
    answers = ask(classes, questions)
    files = dict(zip([p.name for p in FILES], answers, strict=False))
    patterns = {
        pattern: answer
        if isinstance(answer, str)
        else [name for name, hit in zip(NAMES, answer, strict=True) if hit]
        for pattern, answer in zip(PATTERNS, answers[len(FILES) :], strict=True)
    }
    if os.environ.get("RECORD_JAVA_ANSWERS"):
        said = {"properties": files, "patterns": patterns}
        ANSWERS.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    recorded = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert files == recorded["properties"]
    # The texts of Java's errors differ between its versions; that it refuses does not.
    for pattern, answer in patterns.items():
        if isinstance(answer, str):
            assert isinstance(recorded["patterns"][pattern], str), pattern
        else:
            assert answer == recorded["patterns"][pattern], pattern


def test_generated_properties_files_are_read_as_java_reads_them(classes: Path) -> None:
    chance = random.Random(20_260_721)
    pieces = ["a", "B", "->", ".", "=", ":", " ", "\t", "\f", "\\", "\\\\", "#", "!", "\n", "\r"]
    pieces += ["\r\n", "\\\n", "\\u0041", "\\u00e9", "é", "\x0b", "\xa0", "true ", "x", "\\t", "#:"]
    files = [
        "".join(chance.choice(pieces) for _ in range(chance.randint(0, 40))).encode("iso-8859-1")
        for _ in range(4_000)
    ]
    answers = ask(classes, [about_properties(data) for data in files])
    for data, java in zip(files, answers, strict=True):
        ours = ours_of_properties(data)
        if isinstance(java, str):
            assert isinstance(ours, str), (data, java, ours)
        else:
            assert ours == java, data


def test_generated_patterns_match_the_same_names_or_are_refused(classes: Path) -> None:
    chance = random.Random(20_260_722)
    pieces = ["a", "b", "foo", ".", ".*", "\\.", "[", "]", "[a-c]", "[^a]", "^", "$", "|", "(", ")"]
    pieces += ["(?:", "(?!", "(?i)", "*", "+", "?", "{2}", "{1,2}", "\\d", "\\w", "&&", "-", "_"]
    pieces += ["\\Q", "\\E", "(?<n>", "\\k<n>", "\\1", "{", "}", "#", "\\b", "[a", "\\s", "B", "--"]
    patterns = [
        "".join(chance.choice(pieces) for _ in range(chance.randint(1, 8))) for _ in range(6_000)
    ]
    names = [
        "",
        "a",
        "b",
        "B",
        "ab",
        "aa",
        "bb",
        "foo",
        "afoo",
        "a.b",
        "foo-a",
        "_",
        "-",
        "9",
        "aab",
    ]
    names += ["abab", "A", "FOO", "a|b", "a#", "[a", "&", "&&", "foofoo", "a-b", "^a", "$"]
    answers = ask(classes, [about_pattern(pattern, names) for pattern in patterns])
    compared = 0
    for pattern, java in zip(patterns, answers, strict=True):
        ours = ours_of_pattern(pattern, names)
        if isinstance(java, str):
            assert isinstance(ours, str), (pattern, java)
        elif not isinstance(ours, str):
            assert ours == java, pattern
            compared += 1
    assert compared > 1_000


Configs = dict[str, dict[str, dict[str, str]]]


def generated_files(count: int) -> list[bytes]:
    """Files of keys in all scopes with values that Java and we read alike."""
    chance = random.Random(20_260_723)
    keys = [
        "enabled", "emit.heartbeats.enabled", "topics", "topics.exclude", "groups", "tasks.max",
        "replication.factor", "replication.policy.separator", "replication.policy.mine", "xxx",
        "offset.storage.replication.factor", "status.storage.topic", "task.x", "worker.y",
        "key.converter", "offset.flush.interval.ms", "exactly.once.source.support", "group.id",
        "client.id", "security.protocol", "ssl.key.password", "sasl.mechanism", "request.timeout.ms",
        "producer.acks", "producer.ssl.protocol", "consumer.isolation.level", "admin.timeout.ms",
        "consumer.poll.timeout.ms", "producer.override.linger.ms", "use.defaults.from",
        "transforms", "transforms.x.type", "topic.creation.default.partitions", "metric.reporters",
        "sync.topic.acls.enabled", "offset-syncs.topic.location", "errors.tolerance",
    ]  # fmt: skip
    special = {"security.protocol": "SSL"}
    files: list[bytes] = []
    for _ in range(count):
        aliases = ["a", "b", "c.d"][: chance.randint(1, 3)]
        prefixes = ["", "", *(f"{a}." for a in aliases)]
        prefixes += [f"{s}->{t}." for s in aliases for t in aliases]
        lines = [f"clusters = {', '.join(aliases)}"]
        lines += [f"{alias}.bootstrap.servers = {alias}:1" for alias in aliases]
        for _ in range(chance.randint(0, 25)):
            key = chance.choice(keys)
            value = "true" if chance.random() < 0.5 else "false"
            if not key.endswith("enabled"):
                value = special.get(key, chance.choice(["1", "x", "a, b", ""]))
            lines.append(f"{chance.choice(prefixes)}{key} = {value}")
        files.append("\n".join(lines).encode())
    return files


MIRROR_FILES = [
    *(path.read_bytes() for path in sorted((ROOT / "data" / "config").glob("seed_mm2_*"))),
    (ROOT.parent / "examples" / "connect-mirror-maker.properties").read_bytes(),
    *generated_files(150),
]


@dataclass(frozen=True)
class Truth:
    """What Java said of the connectors and of each of ``FILES``."""

    definitions: dict[str, dict[str, str]]
    files: list[Configs | str]


@pytest.fixture(scope="module")
def truth(classes: Path) -> Truth:
    lines = "\n".join(data.hex() for data in MIRROR_FILES)
    done = run_java(
        "org.apache.kafka.connect.mirror.MirrorConfigTruth",
        classpath=[classes],
        stdin=lines + "\n",
        timeout_s=120,
    )
    answers = [json.loads(line) for line in done.check().splitlines() if line[:1] in '{"']
    return Truth(answers[0], answers[1:])


def test_every_option_of_kafkas_connectors_is_declared_with_type_and_default(truth: Truth) -> None:
    for definition in CONNECTORS:
        if definition.name == "MirrorSinkConnector":
            continue  # KIP-382 describes it, Kafka never had it
        ours = options_of(definition.model)
        java = truth.definitions[definition.name]
        missing = set(java) - set(ours) - option_names(CONNECTORS) - {"config.providers"}
        assert not missing, sorted(missing)
        for name, info in ours.items():
            if name in java and name not in ("name", "connector.class"):
                assert java[name] == described(info), name


def described(option: Option) -> str:
    kind = {"patterns": "list"}.get(option.type.value, option.type.value).upper()
    default = option.default if option.java_default is None else option.java_default
    return f"{kind} {'<required>' if option.required else default or ''}"


def without_ours(config: dict[str, str]) -> dict[str, str]:
    ours = {key: default for key, (default, _) in DEDICATED_DEFAULTS.items()}
    return {key: value for key, value in config.items() if ours.get(key) != value}


def test_workers_and_connectors_are_configured_as_kafka_does(truth: Truth) -> None:
    assert len(truth.files) == len(MIRROR_FILES)
    compared = 0
    for data, java in zip(MIRROR_FILES, truth.files, strict=True):
        config = MirrorMakerConfig(parse(data), CONNECTORS, environ={})
        try:
            flows = config.flows()
        except ConfigError:
            flows = ()
        if isinstance(java, str):
            assert not flows or config.findings, (data, java)
            continue
        left_out = set(java) - {str(flow) for flow in flows}
        assert len(java) == len(flows) + len(left_out), data
        # Java runs the heartbeats of clusters that no flow connects.
        connected = {frozenset((flow.source, flow.target)) for flow in config.enabled_pairs}
        assert all(connected and frozenset(it.split("->")) not in connected for it in left_out)
        for flow in flows:
            derived = java[str(flow)]
            worker = with_our_converters(derived["worker"])
            assert without_ours(config.worker_config(flow)) == without_ours(worker)
            for name, ours in config.connector_configs(flow).items():
                assert ours == as_we_read_it(derived[name], ours), (flow, name)
                compared += 1
    assert compared > 300


def with_our_converters(java: dict[str, str]) -> dict[str, str]:
    return {
        key: BYTE_ARRAY_CONVERTER if is_unusable_converter(key, value) else value
        for key, value in java.items()
    }


def as_we_read_it(java: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """Java's config, switches trimmed, converters that we have, and old names replaced by the new ones."""
    kept = {
        key: value.strip() if key.endswith("enabled") else value
        for key, value in with_our_converters(java).items()
        if modern_name(key, value, option_names(CONNECTORS)) is None
    }
    added = {key: ours[key] for key in set(ours) - set(kept)}
    assert set(added) <= {"topics.exclude", "sync.group.offsets.interval.seconds"}
    return kept | added


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


def test_texts_mean_what_they_mean_to_kafka(classes: Path) -> None:
    dice = random.Random(7)
    texts = list(WHOLE)
    for _ in range(4_000):
        body = "".join(dice.choice(TOKENS) for _ in range(dice.randrange(9)))
        texts.append(f"{MODULE} required {body}{dice.choice(['', ';', ' ;'])}")
    lines = "".join(text.encode().hex() + "\n" for text in texts)
    answers = run_java("JaasTruth", classpath=[classes], stdin=lines).check().splitlines()
    assert len(answers) == len(texts)
    different = [
        (text, theirs, ours(text))
        for text, theirs in zip(texts, answers, strict=True)
        if theirs != ours(text)
    ]
    assert not different, f"{len(different)}: {different[:12]}"
    assert sum(answer != "-" for answer in answers) > 200


KRB5 = "com.sun.security.auth.module.Krb5LoginModule"
JAAS_FILES = [
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


def test_files_mean_what_they_mean_to_the_jvm(classes: Path, tmp_path: Path) -> None:
    lines = "".join(text.encode().hex() + "\n" for text in JAAS_FILES)
    answers = run_java("JaasFileTruth", classpath=[classes], stdin=lines).check().splitlines()
    file = tmp_path / "jaas.conf"

    def of_file(text: str) -> str:
        file.write_text(text, encoding="utf-8")
        try:
            found = login_of_file({"KAFKA_OPTS": f"-Djava.security.auth.login.config={file}"})
        except ConfigError:
            return "-"
        assert found is not None
        return in_hex(found)

    assert [of_file(text) for text in JAAS_FILES] == answers
    assert sum(answer != "-" for answer in answers) == 5


@pytest.mark.faults
def test_the_truth_that_unit_tests_compare_with_is_what_java_says(classes: Path) -> None:
    done = run_java(
        "org.apache.kafka.connect.runtime.ConnectDefinitions", classpath=[classes], timeout_s=120
    )
    written = (ROOT / "data" / "config" / "connect_definitions.json").read_text()
    assert json.loads(done.check()) == json.loads(written)


@pytest.mark.faults
def test_the_truth_that_converters_are_compared_with_is_what_java_says(classes: Path) -> None:
    done = run_java("Conversions", classpath=[classes], timeout_s=120)
    written = (ROOT / "data" / "conversions.json").read_text()
    assert json.loads(done.check()) == json.loads(written)


def test_topics_are_dealt_in_the_order_in_which_java_lists_them(classes: Path) -> None:
    dice = random.Random(11)
    lists: list[list[str]] = []
    for number in range(200):
        size = number + 1 if number < 130 else dice.randrange(1, 2_000)
        kinds = ("t.{}", "topic-{}", "tänze.{}", "x{}", "t.orders.{}.v1")
        texts = (dice.choice(kinds).format(dice.randbytes(4).hex()) for _ in range(size))
        names = {*texts, "t"}
        lists.append(dice.sample(sorted(names), len(names)))
    lines = "".join(",".join(names) + "\n" for names in lists)
    answers = run_java("TopicOrderTruth", classpath=[classes], stdin=lines).check().splitlines()
    ours = [",".join(described_order(it, lambda name: name.startswith("t"))) for it in lists]
    assert ours == answers
