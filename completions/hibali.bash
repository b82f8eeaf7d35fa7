_hibali_completion() {
    local line=${COMP_LINE:0:COMP_POINT} completion kind value word before=
    # readline splits words at : and @, which occur in places and versions: the text before the last split is on the line already
    word=${line##*[[:space:]]}
    if [[ $COMP_WORDBREAKS == *[:@]* && $word == *[:@]* ]]; then
        before=${word%"${word##*[:@]}"}
    fi
    COMPREPLY=()
    while IFS= read -r completion; do
        [[ $completion == *,* ]] || continue
        kind=${completion%%,*} value=${completion#*,}
        if [[ $kind == dir ]]; then
            compopt -o dirnames
        elif [[ $kind == file ]]; then
            compopt -o default
        else
            printf -v value %q "$value"
            COMPREPLY+=("${value#"$before"}")
        fi
    done < <(env COMP_LINE="$line" _HIBALI_COMPLETE=bash_complete "$1")
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *[:/] ]]; then
        compopt -o nospace
    fi
    return 0
}

complete -o nosort -F _hibali_completion hibali
