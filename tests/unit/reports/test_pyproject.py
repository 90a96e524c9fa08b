"""Selection of the pyproject.toml, and errors of invalid ones."""

from datetime import date, timedelta

import pytest

from esprof.analyzers.ignore import NOTHING
from esprof.core.errors import UsageError
from esprof.reports.pyproject import read_ignores

TOMORROW = date.today() + timedelta(days=1)
YESTERDAY = date.today() - timedelta(days=1)


def entry(id="ESP301", until=TOMORROW):
    return f'[[tool.esprof.ignore]]\nid = "{id}"\nreason = "known"\nuntil = {until}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, three levels below the root of the project."""
    folder = tmp_path / "project" / "src" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_without_a_file_nothing_is_ignored(folder):
    assert read_ignores() == NOTHING


def test_the_file_is_searched_in_parent_folders(folder):
    (folder.parents[1] / "pyproject.toml").write_text(entry())
    assert [one.id for one in read_ignores().entries] == ["ESP301"]


def test_the_nearest_file_with_the_table_is_used(folder):
    (folder.parents[1] / "pyproject.toml").write_text(entry("ESP301"))
    (folder.parents[0] / "pyproject.toml").write_text(entry("ESP101"))
    (folder / "pyproject.toml").write_text('[project]\nname = "other"\n[tool.ruff]\nline-length = 100\n')
    assert [one.id for one in read_ignores().entries] == ["ESP101"]


def test_an_empty_table_ignores_nothing(folder):
    (folder / "pyproject.toml").write_text("[tool.esprof]\n")
    (folder.parent / "pyproject.toml").write_text(entry())
    assert read_ignores() == NOTHING


def test_rules_expire_after_their_last_day(folder):
    (folder / "pyproject.toml").write_text(entry(until=YESTERDAY) + entry("ESP101", until=date.today()))
    ignores = read_ignores()
    assert [one.id for one in ignores.entries] == ["ESP101"]
    assert [one.id for one in ignores.expired] == ["ESP301"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[tool.esprof\n", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"[tool.esprof]\nignores = []\n", "'ignores'"),
        (b'[tool]\nesprof = "on"\n', "tool.esprof"),
        (b'[tool.esprof.ignore]\nid = "ESP301"\n', "not a list of tables"),
        (entry(until='"soon"').encode(), "entry 1"),
    ],
)
def test_an_invalid_file_is_named_with_a_remedy(folder, content, said):
    file = folder / "pyproject.toml"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_ignores()
    assert (caught.value.path, caught.value.exit_code) == (file, 2)
    assert said in caught.value.reason
    assert caught.value.remedy
