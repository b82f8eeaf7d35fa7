"""Complete words in bash and zsh, where SITE:PATH and folders need more than click offers."""

from __future__ import annotations

import os
from typing import ClassVar

from click.shell_completion import BashComplete, CompletionItem, ZshComplete, split_arg_string

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
