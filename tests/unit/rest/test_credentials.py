from pathlib import Path

import pytest

from mm2py.config.rest_settings import RestSettings
from mm2py.errors import ConfigError
from mm2py.rest.credentials import Caller, Credentials


def read(folder: Path, users: str = "", tokens: str = "", read_only: str = "") -> Credentials:
    props = {"rest.read.only.users": read_only}
    for key, text in (("rest.basic.auth.file", users), ("rest.bearer.tokens.file", tokens)):
        if text:
            path = folder / key
            path.write_text(text)
            props[key] = str(path)
    return Credentials.read(RestSettings.of_worker(props))


def test_users_are_those_of_connects_properties_file(tmp_path: Path) -> None:
    found = read(tmp_path, "# operators\nann = canary-a\nbob:canary-b\n", "robot=canary-c", "robot")
    assert found.required
    assert found.caller("Bearer canary-c", None) == Caller("robot", operator=False)
    assert found.caller("Basic Ym9iOmNhbmFyeS1i", None) == Caller("bob", operator=True)
    assert found.secrets == {"canary-a", "canary-b", "canary-c"}
    assert "canary" not in repr(found)


def test_without_files_nobody_has_to_say_who_he_is(tmp_path: Path) -> None:
    del tmp_path
    found = Credentials.read(RestSettings.of_worker({}))
    assert not found.required
    assert found.caller(None, None) == Caller("anonymous", operator=True)


@pytest.mark.parametrize(
    ("users", "tokens", "read_only", "text"),
    [
        ("# nobody\n", "", "", "names nobody"),
        ("ann=\n", "", "", ":1 has no secret"),
        ("ann=a\n=canary\n", "", "", ":2 has no name"),
        ("", "a=canary\nb=canary\n", "", "two names have the same token"),
        ("ann=canary\n", "", "anne", "names anne, whom no file knows"),
    ],
)
def test_a_file_that_would_let_the_wrong_ones_in_is_refused(
    tmp_path: Path, users: str, tokens: str, read_only: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, users, tokens, read_only)
    assert text in caught.value.message
    assert caught.value.remedy
    assert "canary" not in str(caught.value)


def test_a_missing_file_is_refused_by_the_name_of_its_property(tmp_path: Path) -> None:
    missing = RestSettings.of_worker({"rest.bearer.tokens.file": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match=r"rest\.bearer\.tokens\.file: .* does not exist"):
        Credentials.read(missing)
