"""`egressproxy completion`: what a shell needs to complete verbs, options and names."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes verbs, options, files, and the kinds and names of a running gateway
    (at --admin of the line, else $EGRESSPROXY_ADMIN).

    \b
    Examples:
      source <(egressproxy completion bash)               # in ~/.bashrc; bash 4.4 or newer
      source <(egressproxy completion zsh)                # in ~/.zshrc, behind compinit
      egressproxy completion fish | source                # in ~/.config/fish/config.fish
      egressproxy completion bash > /etc/bash_completion.d/egressproxy
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has checked the choice
    made = kind(ctx.find_root().command, {}, "egressproxy", "_EGRESSPROXY_COMPLETE")
    # Not `source()`, which runs bash to see how old it is: the script may be for another machine.
    click.echo(made.source_template % made.source_vars())
