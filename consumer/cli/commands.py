"""The commands: one module of this package each."""

import importlib
import inspect
import re
from collections.abc import Sequence
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError, create_model
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError
from rich.console import Console
from rich.table import Table

from consumer.cli.help import ArgumentsOnly, arguments_of
from consumer.version import recallstream_version
from engine.errors import RecallstreamError

# name: (module:class, summary). The class is a pydantic model (settings or plain) whose ``cli_cmd`` does the work. It
# is imported only when it is asked for; its heavy imports belong inside ``cli_cmd``.
COMMANDS = {
    "serve": ("consumer.cli.serve:Serve", "run the service: Kafka in, recalled items out"),
    "recall": ("consumer.cli.recall:Recall", "recall for every row of a Parquet file, without Kafka"),
    "send": ("consumer.cli.send:Send", "send one request and show the answer"),
    "dead-letters": ("consumer.cli.dead_letters:DeadLetters", "look at records that could not be served, replay them"),
    "catalog": ("consumer.cli.catalog.command:CatalogCommand", "build, publish, watch and roll back catalogs"),
    "sids": ("consumer.cli.sids:SidsCommand", "semantic IDs for items that have embeddings"),
    "estimate": ("consumer.cli.estimate:Estimate", "memory and speed of a model on a GPU before there is one"),
    "bench": ("consumer.cli.bench:Bench", "measure the engine, the service or the kernels on this machine"),
    "demo": ("consumer.cli.demo:Demo", "the whole data flow on this machine, on real data"),
}

EXIT_FAILURE = 1
EXIT_USAGE = 2


def run(arguments: Sequence[str]) -> int:
    """Run one command. Returns its exit code: 0 done, 1 failed, 2 bad usage or settings."""
    if not arguments or arguments[0] in ("-h", "--help"):
        _show_commands()
        return 0 if arguments else EXIT_USAGE
    if arguments[0] == "--version":
        Console().print(f"recallstream {recallstream_version()}", highlight=False)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return _fail(EXIT_USAGE, "", f"unknown command {name!r}; there are {', '.join(COMMANDS)}")
    try:
        command = _load(name)
        words = [_kebab_case(word) for word in rest]
        CliApp.run(command, cli_args=words, cli_settings_source=arguments_of(command), cli_exit_on_error=False)
    except ValidationError as error:
        return _fail(EXIT_USAGE, name, describe(error))
    except SettingsError as error:
        said = str(error).splitlines()[0].removeprefix("error parsing CLI: ")
        return _fail(EXIT_USAGE, name, said + _hint(rest, said))
    except (RecallstreamError, OSError) as error:
        return _fail(EXIT_FAILURE, name, str(error))
    except SystemExit as stop:
        return _exit_code(name, stop)
    return 0


def describe(error: ValidationError) -> str:
    """One line for all that is wrong: dotted field name and message, never the offending value (it may be a secret)."""
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, "))))
        for item in error.errors(include_url=False, include_input=False)
    )


def _load(name: str) -> type[BaseSettings]:
    """The command's class, told its name and the command line conventions that all commands share."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command: type[BaseModel] = getattr(importlib.import_module(module), attribute)
    for field in command.model_fields.values():
        for kind in get_args(field.annotation):  # a sub-command's class or None
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                kind.__doc__ = inspect.getdoc(kind)
    conventions: dict[str, Any] = dict(
        SettingsConfigDict(
            cli_prog_name=f"recallstream {name}",
            cli_kebab_case=True,
            cli_implicit_flags=True,
            cli_avoid_json=True,
            cli_hide_none_type=True,
            cli_exit_on_error=False,
        )
    )
    bases = (command,) if issubclass(command, BaseSettings) else (command, ArgumentsOnly)
    named: dict[str, Any] = {"__doc__": inspect.getdoc(command), "__module__": __name__}
    return cast(type[BaseSettings], create_model(command.__name__, __base__=bases, __cls_kwargs__=conventions, **named))


def _hint(words: Sequence[str], said: str) -> str:
    """Settings that follow a sub-command are unknown to argparse."""
    after = re.match(r"unrecognized arguments: --\w+\.", said) and not words[0].startswith("-")
    return "; settings stand before the sub-command" if after else ""


def _kebab_case(word: str) -> str:
    """``--engine.max_batch`` is ``--engine.max-batch``: a flag may be spelled as the setting is in TOML."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _show_commands() -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, (_, summary) in COMMANDS.items():
        table.add_row(f"  [bold]{name}[/]", summary)
    console = Console()
    console.print("usage: recallstream COMMAND [--help] ...\n", highlight=False, markup=False)
    console.print(table)


def _fail(code: int, command: str, message: str) -> int:
    line = f"{' '.join(['recallstream', *command.split()])}: {' '.join(message.split())}"
    Console(stderr=True).print(line, soft_wrap=True, markup=False, highlight=False)
    return code


def _exit_code(command: str, stop: SystemExit) -> int:
    if isinstance(stop.code, str):
        return _fail(EXIT_FAILURE, command, stop.code)
    return stop.code or 0
