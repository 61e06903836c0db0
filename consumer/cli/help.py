"""What ``--help`` shows: one short usage line, options by section, plain words for values."""

import re
import textwrap
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    RawDescriptionHelpFormatter,
    _MutuallyExclusiveGroup,
    _SubParsersAction,
)
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

from pydantic_settings import BaseSettings, CliSettingsSource, PydanticBaseSettingsSource

FEW = 5
"""A usage line names so many of a command's own options, or none of them."""

_HELP_AT = 28
_REQUIRED = "(required)"
_NO_DEFAULT = re.compile(r" ?\((?:default: (?:None|False|\(\)|\[\]|\{\}|\*+)|default factory: .*)\)$")
_LIST = re.compile(r"\(default: [\[(](.+)[\])]\)$")
_WORDS = {"str": "TEXT", "SecretStr": "TEXT", "int": "N", "float": "NUMBER", "Path": "PATH"}
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b")
_SEQUENCE = re.compile(r"(?:list|tuple)\[([^\[\]]+?)(?:,\.\.\.)?\]")


class ArgumentsOnly(BaseSettings, cli_enforce_required=True):
    """Makes a settings class of a command that is a plain model: nothing but its arguments counts."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def arguments_of(command: type[BaseSettings]) -> CliSettingsSource[ArgumentParser]:
    """The parser of a command's arguments. What it shows fits the terminal, 80 columns if that is unknown."""
    return CliSettingsSource(command, add_argument_method=_add_argument, formatter_class=_Formatter)


def metavar(kind: str) -> str:
    """The word for a value, of pydantic-settings' name of its type: ``tuple[str,...]`` is ``TEXT,...``."""
    if kind.startswith("dict["):
        return "JSON" if "JSON" in kind else "NAME=VALUE"
    if one := _SEQUENCE.fullmatch(kind):
        return f"{metavar(one[1])},..."
    return "JSON" if "[" in kind else _WORD.sub(lambda word: _WORDS[word[1]], kind)


def _add_argument(parser: ArgumentParser, *names: str, **options: Any) -> Action:
    if options.get("metavar"):
        options["metavar"] = metavar(options["metavar"])
    help_text = _NO_DEFAULT.sub("", options["help"])
    options["help"] = _LIST.sub(lambda items: "(default: " + items[1].replace("'", "") + ")", help_text)
    return ArgumentParser.add_argument(parser, *names, **options)


class _Formatter(RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_AT)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[Action],
        groups: Iterable[_MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        shown = [action for action in actions if action.help != SUPPRESS and "--help" not in action.option_strings]
        words = [action for action in shown if not action.option_strings]
        settings = [action for action in shown if any("." in name for name in action.option_strings)]
        own = [action for action in shown if action not in words and action not in settings]
        must = [_required(action) for action in own if _is_required(action)]
        may = [action for action in own if not _is_required(action)]
        if len(may) > FEW:
            may = [_stand_in("--OPTION", "VALUE ...")]
        if settings:
            may.append(_stand_in("--SECTION.FIELD", "VALUE ..."))
        super().add_usage(usage, [*must, *may, *words], groups, prefix)

    def _metavar_formatter(self, action: Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        if isinstance(action, _SubParsersAction) and len(action.choices) > FEW:  # they are listed below
            return lambda size: ("COMMAND",) * size
        return super()._metavar_formatter(action, default_metavar)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        filled = (textwrap.fill(" ".join(each.split()), width, break_on_hyphens=False) for each in paragraphs)
        return textwrap.indent("\n\n".join(filled), indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _is_required(action: Action) -> bool:
    return action.required or _REQUIRED in (action.help or "")  # a setting may also come from a file


def _required(action: Action) -> Action:
    action = copy(action)
    action.required = True
    return action


def _stand_in(name: str, values: str) -> Action:
    return Action([name], dest=name, metavar=values)
