"""`esprof completion`: the script of each shell, and what a shell gets from it."""

import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from esprof.cli import root
from esprof.reports.commands import completion
from esprof.verbs import COMPLETION, VERBS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_says_how_to_install_it(shell):
    said = CliRunner().invoke(completion.command, [shell], catch_exceptions=False)
    assert said.stdout.splitlines()[-1] == f"# To install this script, run once: {completion.INSTALL[shell]}"
    assert f"{COMPLETION}={shell}_complete" in said.stdout
    assert completion.INSTALL[shell] in " ".join(completion.command.help.split())


def test_another_shell_is_a_usage_error():
    assert CliRunner().invoke(completion.command, ["csh"]).exit_code == 2


def completed(*words):
    """The words and kinds that complete the last of `words`."""
    found = BashComplete(root, {}, "esprof", COMPLETION).get_completions([*words[:-1]], words[-1])
    return [(item.type, item.value) for item in found]


def test_verbs_options_and_their_values_are_completed():
    assert completed("") == [("plain", verb) for verb in VERBS]
    assert completed("diag") == [("plain", "diagnose")]
    assert ("plain", "--what-if") in completed("replay", "--w")
    assert ("plain", "total-cpu") in completed("ops", "--sort", "to")
    assert completed("no-such-verb", "x") == []


@pytest.mark.parametrize("verb", ["diagnose", "replay", "report", "ops", "check"])
def test_a_run_is_completed_as_a_file(verb):
    assert completed(verb, "my-")[0][0] == "file"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_the_script(tmp_path):
    esprof = tmp_path / "esprof"
    esprof.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from esprof.cli import main; main()' \"$@\"\n")
    esprof.chmod(0o755)
    typed = 'COMP_WORDS=(esprof rep); COMP_CWORD=1; _esprof_completion esprof; echo "${COMPREPLY[@]}"'
    script = f'PATH="{tmp_path}:$PATH"; eval "$(esprof completion bash)"; {typed}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["report", "replay"]
