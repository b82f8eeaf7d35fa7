"""Complete words on the command line from local files, and set completion up in a shell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import click
from click.shell_completion import BashComplete, CompletionItem, ZshComplete, split_arg_string

from hibali.errors import HibaliError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hibali.config.settings import Settings


_MOST_RUNS = 50
SITES, PLACES, ENDS, PIPELINES, RUNS, REMOTES = (
    "sites",
    "places",
    "ends",
    "pipelines",
    "runs",
    "remotes",
)
_FILES, _FOLDERS = "file", "dir"
_OPERATIONS = "operations"
_KINDS = "kinds"
_KEYS = "keys"
_PROFILES = "profiles"
# By the metavar of a parameter, without brackets and dots.
_BY_METAVAR = {
    "SITE": (SITES,),
    "SITE|auto": (SITES,),
    "SITE|ID": (SITES, RUNS),
    "SITE:PATH": (PLACES,),
    "SITE[:PATH]": (PLACES,),
    "FROM": (ENDS,),
    "TO": (ENDS,),
    "LOCATION": (ENDS,),
    "PLACE": (PLACES,),
    "DATASET": (ENDS,),
    "PIPELINE": (PIPELINES,),
    "NAME@VERSION": (PIPELINES,),
    "NAME[@VERSION]": (PIPELINES,),
    "FILE|NAME[@VERSION]": (PIPELINES, _FILES),
    "ID": (RUNS,),
    "A_ID": (RUNS,),
    "B_ID": (RUNS,),
    "RUN_ID|INVOCATION.json": (RUNS, _FILES),
    "REMOTE": (REMOTES,),
    "KEY": (_KEYS,),
    "FILE": (_FILES,),
    "FILE|-": (_FILES,),
    "FILE.html": (_FILES,),
    "ARCHIVE": (_FILES,),
    "INVOCATION.json": (_FILES,),
    "DIR": (_FOLDERS,),
    "DIR|FILE.zip": (_FILES,),
    "FOLDER": (_FOLDERS,),
    "ssh|rclone|centre:NAME|FILE|URL": ("ssh", "rclone", _PROFILES, _FILES),
    "auto|agent|sftp": ("auto", "agent", "sftp"),
}
_BY_NAME = {
    "local": (_FILES,),
    "source": (_FILES,),
    "sources": (_FILES,),
    "old": (PIPELINES, _FILES),
    "new": (PIPELINES, _FILES),
    "file": (_FILES,),
    "invocation": (_FILES,),
    "pipeline": (PIPELINES,),
    "pipelines": (PIPELINES,),
    "kind": (_KINDS,),
    "scheduler": ("runs.schedulers",),
    "container": ("runs.containers",),
}
# The kind of `NAME`, by the group of the command.
_BY_GROUP = {"sites": (SITES,), "cache": (SITES,), "remotes": (REMOTES,)}


def add_completions(parameters: Iterable[click.Parameter]) -> None:
    """Add completion to each parameter by its metavar."""
    for parameter in parameters:
        own = parameter.shell_complete
        parameter.shell_complete = partial(_complete, parameter, own)  # type: ignore[method-assign]


def _complete(
    parameter: click.Parameter,
    own: Callable[[click.Context, str], list[CompletionItem]],
    context: click.Context,
    incomplete: str,
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # start-up: only for this kind of word

    found: list[CompletionItem] = []
    arguments = [each for each in context.command.params if isinstance(each, click.Argument)]
    # what follows several words is completed as one of them
    completed = [parameter, *(arguments[-1:] if parameter.nargs == -1 else ())]
    for kind in dict.fromkeys(kind for each in completed for kind in kinds_of(each, context)):
        if kind in {_FILES, _FOLDERS}:
            found.append(CompletionItem(incomplete, type=kind))
            continue
        with contextlib.suppress(HibaliError, OSError, ValueError, KeyError):
            found += [
                CompletionItem(candidate)
                for candidate in _candidates(kind, context, incomplete)
                if candidate.startswith(incomplete)
            ]
        if kind == ENDS and ":" not in incomplete:
            found.append(CompletionItem(incomplete, type=_FILES))
    return found or own(context, incomplete)


def kinds_of(parameter: click.Parameter, context: click.Context) -> tuple[str, ...]:
    """Return the kinds of values that a parameter takes, by its metavar, of several the last."""
    name = str(parameter.name)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return ()
    metavar = (
        (parameter.metavar or "").rpartition(" ")[2].removeprefix("[").replace("...", "").removesuffix("]")
    )
    if metavar.count("[") > metavar.count("]"):
        metavar += "]"
    group = (context.parent.info_name if context.parent is not None else None) or ""
    if metavar == "ID" and group == "history":
        return (_OPERATIONS,)
    if metavar in _BY_METAVAR:
        return _BY_METAVAR[metavar]
    if name in {"name", "names"} and isinstance(parameter, click.Argument):
        return _BY_GROUP.get(group, ())
    return _BY_NAME.get(name, ())


def _candidates(kind: str, context: click.Context, incomplete: str) -> Iterator[str]:
    if kind in _READERS:
        yield from _READERS[kind](context, incomplete)
    elif kind == _KINDS:
        from hibali.config.kinds import kind_names  # start-up: only for this kind of word

        yield from kind_names()
    elif kind.startswith("runs."):
        from hibali.plugins import plugin_names  # start-up: only for this kind of word

        yield from sorted(plugin_names(kind))
    else:
        yield kind


def _site_names(context: click.Context, incomplete: str) -> Iterator[str]:
    del incomplete
    yield from sorted(_settings(context).sites)


def _place_names(context: click.Context, incomplete: str) -> Iterator[str]:
    """Complete sites with their colon, then roots, names listed before, and places of earlier transfers."""
    from hibali_cli.path_completion import places_like  # start-up: only for this kind of word

    settings = _settings(context)
    name, colon, typed = incomplete.partition(":")
    if not colon:
        yield from (f"{name}:" for name in sorted(settings.sites))
        return
    site = settings.sites[name or settings.default_site]
    if "/" not in typed:
        yield from (f"{name}:@{root}/" for root in sorted(site.roots))
    here = "./" if typed.startswith("./") else ""
    for place in places_like(site.name, typed.removeprefix("./")):
        path = place.partition(":")[2]
        yield f"{name}:{'./' if path.startswith(':') else here}{path}"  # SITE::PATH is refused


def _pipeline_names(context: click.Context, incomplete: str) -> Iterator[str]:
    """Complete pipeline names, and after an @ their versions."""
    del context
    from registry.catalogue import Catalogue  # start-up: only for this kind of word

    known = Catalogue().pins()
    if "@" in incomplete:
        yield from (f"{name}@{version}" for name, version in known)
    else:
        yield from sorted({name for name, _ in known})


def _run_ids(context: click.Context, incomplete: str) -> Iterator[str]:
    """Complete `latest`, names of runs and last parts of ids; after a first letter also whole ids and `latest:PIPELINE`."""
    del context
    from hibali.ledger import LATEST, short_identifier  # start-up: only for this kind of word
    from runs.model import is_run_name  # start-up: only for this kind of word
    from runs.run_index import read_latest_names  # start-up: only for this kind of word

    latest = read_latest_names(_MOST_RUNS)
    names = (name for _, name, _ in latest if is_run_name(name) and name.isprintable() and name[0] != "-")
    yield from dict.fromkeys([LATEST, *names] if latest else [])
    yield from (short_identifier(run_id) for run_id, _, _ in latest)
    if incomplete:
        yield from dict.fromkeys(f"{LATEST}:{pipeline.partition('@')[0]}" for _, _, pipeline in latest)
        yield from (run_id for run_id, _, _ in latest)


def _operation_ids(context: click.Context, incomplete: str) -> Iterator[str]:
    """Complete `latest` and last parts of ids, the latest first; after a first letter also whole ids; no file is read."""
    del context
    from hibali.ledger import LATEST, journal_names, ledger_folder, short_identifier  # start-up: as above

    latest = sorted(journal_names(ledger_folder(_OPERATIONS)), reverse=True)[:_MOST_RUNS]
    yield from (LATEST, *map(short_identifier, latest)) if latest else ()
    if incomplete:
        yield from latest


def _remote_names(context: click.Context, incomplete: str) -> Iterator[str]:
    del incomplete
    yield from sorted(_settings(context).remotes)


def _setting_keys(context: click.Context, incomplete: str) -> Iterator[str]:
    """Complete the keys of all sites and remotes, and those of the top, up to the next dot."""
    from hibali.config.settings import ANY_NAME, keys_in_file  # start-up: only for this kind of word

    settings = _settings(context)
    names = {"sites": sorted(settings.sites), "remotes": sorted(settings.remotes)}
    found: dict[str, None] = {}
    for path, _ in keys_in_file():
        for name in names.get(path[0], [""]) if ANY_NAME in path else [""]:
            parts = [name if part == ANY_NAME else part for part in path]
            count = incomplete.count(".") + 1
            if all(parts) and ".".join(parts).startswith(incomplete):
                found[".".join(parts[:count]) + ("." if len(parts) > count else "")] = None
    yield from found


def _profile_names(context: click.Context, incomplete: str) -> Iterator[str]:
    from hibali.plugins import every  # start-up: only for this kind of word

    del context, incomplete
    for kind, profiles in every("hibali.profiles"):
        yield from (f"{kind}:{name}" for name in profiles.names())


def _settings(context: click.Context) -> Settings:
    from hibali.config.settings import load_sites  # start-up: only for this kind of word

    return load_sites(context.params.get("config"))


_READERS: Mapping[str, Callable[[click.Context, str], Iterator[str]]] = {
    SITES: _site_names,
    PLACES: _place_names,
    ENDS: _place_names,
    PIPELINES: _pipeline_names,
    RUNS: _run_ids,
    _OPERATIONS: _operation_ids,
    REMOTES: _remote_names,
    _KEYS: _setting_keys,
    _PROFILES: _profile_names,
}


_BASH = r"""%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} completion kind value word before=
    # readline splits words at : and @, which occur in places and versions: the text before the last split is on the line already
    word=${line##*[[:space:]]}
    if [[ $COMP_WORDBREAKS == *[:@]* && $word == *[:@]* ]]; then
        before=${word%%"${word##*[:@]}"}
    fi
    COMPREPLY=()
    while IFS= read -r completion; do
        [[ $completion == *,* ]] || continue
        kind=${completion%%%%,*} value=${completion#*,}
        if [[ $kind == dir ]]; then
            compopt -o dirnames
        elif [[ $kind == file ]]; then
            compopt -o default
        else
            printf -v value %%q "$value"
            COMPREPLY+=("${value#"$before"}")
        fi
    done < <(env COMP_LINE="$line" %(complete_var)s=bash_complete "$1")
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[:/] ]]; then
        compopt -o nospace
    fi
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_ZSH = r"""#compdef %(prog_name)s

%(complete_func)s() {
    local -a open closed response
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) %(complete_var)s=zsh_complete %(prog_name)s)}")
    for type key descr in ${response}; do
        if [[ $type == dir ]]; then
            _path_files -/
        elif [[ $type == file ]]; then
            _path_files -f
        elif [[ $key == *[:/] ]]; then
            open+=("$key")
        else
            closed+=("$key")
        fi
    done
    (( $#open )) && compadd -U -S '' -V unsorted -a open
    (( $#closed )) && compadd -U -V unsorted -a closed
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


class Bash(BashComplete):
    """Bash completion from the line before the cursor: the words of bash are split in too many parts."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words, and the incomplete one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        if not words or line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1]


class Zsh(ZshComplete):
    """Zsh completion without a blank after an incomplete place."""

    name: ClassVar[str] = "zsh"
    source_template: ClassVar[str] = _ZSH

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return three lines: its type, its text, and an empty description."""
        return f"{item.type}\n{item.value}\n_"
