"""Config providers: files, environment and directories, and what they refuse."""

from pathlib import Path

import pytest

from mm2py.config.providers import Providers
from mm2py.errors import ConfigError

PACKAGE = "org.apache.kafka.common.config.provider."


def providers(environ: dict[str, str] | None = None, **parameters: str) -> Providers:
    props = {
        "config.providers": "file, env,dir",
        "config.providers.file.class": PACKAGE + "FileConfigProvider",
        "config.providers.env.class": PACKAGE + "EnvVarConfigProvider",
        "config.providers.dir.class": PACKAGE + "DirectoryConfigProvider",
    }
    for name, value in parameters.items():
        provider, _, parameter = name.partition("_")
        props[f"config.providers.{provider}.param.{parameter.replace('_', '.')}"] = value
    return Providers.of(props, environ or {})


def test_a_value_may_have_several_placeholders(tmp_path: Path) -> None:
    secrets = tmp_path / "s.properties"
    secrets.write_text("user = me\npassword: p=1\n")
    (tmp_path / "host").write_text("h:1")
    found = providers({"PORT": "9"}).resolve_text(
        f"${{file:{secrets}:user}}/${{file:{secrets}:password}}@${{dir:{tmp_path}:host}}/${{env:PORT}}"
    )
    assert found == "me/p=1@h:1/9"


def test_what_was_put_in_is_remembered_as_secret() -> None:
    some = providers({"A": "hunter2", "B": ""})
    some.resolve({"x": "${env:A}", "y": "${env:B}", "z": "plain"})
    assert some.secrets == {"hunter2"}


@pytest.mark.parametrize("text", ["${env:NONE}", "${vault:a:b}", "${X}", "${env}", "$X", "{env:X}"])
def test_what_cannot_be_resolved_stays_as_it_is(text: str) -> None:
    assert providers().resolve_text(text) == text


def test_a_placeholder_is_replaced_once_and_not_again() -> None:
    assert providers({"A": "${env:B}", "B": "x"}).resolve_text("${env:A}") == "${env:B}"


def test_without_declaration_nothing_is_replaced() -> None:
    assert Providers.of({}, {"A": "x"}).resolve_text("${env:A}") == "${env:A}"


def test_the_environment_has_no_paths_and_an_allow_list() -> None:
    some = providers({"KAFKA_A": "1", "OTHER": "2"}, env_allowlist_pattern="KAFKA_.*")
    assert some.resolve_text("${env:KAFKA_A} ${env:OTHER}") == "1 ${env:OTHER}"
    with pytest.raises(ConfigError, match="no paths"):
        some.resolve_text("${env:p:KAFKA_A}")
    with pytest.raises(ConfigError, match=r"allowlist\.pattern=\(: pattern"):
        providers(env_allowlist_pattern="(")


def test_allowed_paths_cannot_be_left_by_dots_or_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "s").write_text("k=v")
    (inside / "link").symlink_to(outside / "s")
    some = providers(file_allowed_paths=str(inside), dir_allowed_paths=str(inside))
    assert some.resolve_text(f"${{file:{inside}/s:k}}") == "v"
    for text in (
        f"${{file:{outside}/s:k}}",
        f"${{file:{inside}/../out/s:k}}",
        f"${{file:{inside}/link:k}}",
        f"${{dir:{outside}:s}}",
        f"${{dir:{inside}:../out/s}}",
    ):
        with pytest.raises(ConfigError, match="outside"):
            some.resolve_text(text)


def test_a_missing_secrets_file_is_an_error_and_a_missing_key_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        providers().resolve_text(f"${{file:{tmp_path}/no:k}}")
    (tmp_path / "s").write_text("a=1")
    text = f"${{file:{tmp_path}/s:k}}"
    assert providers().resolve_text(text) == text
    assert providers().why_unresolved(text) == f"{text} is not found"
    assert providers().resolve_text(f"${{dir:{tmp_path}:no}}").startswith("${dir:")


def test_a_class_that_is_not_built_in_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"config\.providers\.x\.class=a\.B: not a config provider"
    ):
        Providers.of({"config.providers": "x", "config.providers.x.class": "a.B"}, {})
    with pytest.raises(ConfigError, match=r"config\.providers\.x\.class is missing"):
        Providers.of({"config.providers": "x"}, {})
