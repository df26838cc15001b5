"""The command line. Commands are registered by import string: none is imported before it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError

import assay
from assay.errors import InputError, MissingDependencyError
from assay.registry import cards

USER_ERROR = 2

COMMANDS = {
    "list": ("assay.commands.listing:list_methods", "List the methods with their latest verdicts."),
    "show": ("assay.commands.listing:show", "Show a method: its card, its claims and the latest verdicts."),
    "study": ("assay.commands.study:study", "Run the study of a method and judge its claims."),
    "report": ("assay.commands.report:report", "Write the scoreboard over all runs of a folder."),
    "doctor": ("assay.commands.doctor:doctor", "Say what is installed, what is missing and how to get it."),
}


def build_app(tokens: Sequence[str] = ()) -> App:
    """The application with its own commands and a sub-command per method.

    Args:
        tokens: the command line. The verbs of the method that it names are imported, so that its help can say
            what they do; all others stay import strings.
    """
    app = App(
        name="assay",
        help="New machine-learning methods as real software, each with the study that tests its claims.",
        version=assay.__version__,
        result_action="return_int_as_exit_code_else_zero",
        exit_on_error=False,
        print_error=False,
        # Ours says what happened; the library would end without a word.
        suppress_keyboard_interrupt=False,
    )
    for name, (target, text) in COMMANDS.items():
        app.command(target, name=name, help=text)
    for card in cards().values():
        # Both spellings work; the help shows the one with hyphens.
        names = [card.command] + ([card.name] if card.name != card.command else [])
        method = App(name=names, help=f"{card.title}. {card.summary}", group="Methods")
        addressed = bool(tokens) and tokens[0] in names
        for verb, target in card.verbs.items():
            method.command(_imported(target) if addressed else target, name=verb)
        app.command(method)
    return app


def _imported(target: str) -> Callable[..., object]:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 when all went well, 2 for a mistake of the user's, 130 for Ctrl-C."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.exit(build_app(tokens)(tokens))
    except (CycloptsError, InputError, MissingDependencyError) as error:
        message = error
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        # Without a file name it is not about a file that the user named.
        if error.filename is None:
            raise
        message = f"{error.filename}: {error.strerror}"
    except KeyboardInterrupt:
        print("assay: interrupted", file=sys.stderr)
        sys.exit(130)
    print(f"assay: {' '.join(str(message).split())}", file=sys.stderr)
    sys.exit(USER_ERROR)


if __name__ == "__main__":
    main()
