"""`esprof completion`."""

import click
from click.shell_completion import get_completion_class

from esprof.cli import root
from esprof.verbs import COMPLETION

INSTALL = {
    "bash": """echo 'eval "$(esprof completion bash)"' >> ~/.bashrc""",
    "zsh": """echo 'eval "$(esprof completion zsh)"' >> ~/.zshrc""",
    "fish": "esprof completion fish > ~/.config/fish/completions/esprof.fish",
}
"""The command that installs the script of each shell."""


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(INSTALL)))
def command(shell: str) -> None:
    """Print a script that completes esprof's words in a shell.

    It completes verbs, options, their values, and file names. Install it once, then open a new shell:

    \b
    echo 'eval "$(esprof completion bash)"' >> ~/.bashrc
    echo 'eval "$(esprof completion zsh)"' >> ~/.zshrc
    esprof completion fish > ~/.config/fish/completions/esprof.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    script = kind(root, {}, "esprof", COMPLETION).source().rstrip()
    click.echo(f"{script}\n\n# To install this script, run once: {INSTALL[shell]}")
