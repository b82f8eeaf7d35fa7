#!/bin/sh
# A gate for accounts that hibali uses, as ForceCommand of sshd_config or command="..." of authorized_keys,
# beside `restrict`. It allows the SFTP server, the agent's one constant command and the scheduler's own words
# with plain arguments, and nothing else.
#
# The agent is a program that hibali sends on standard input: whoever may start it may do all that this account
# may. `hibali sites gate --no-agent` prints the gate without it; transfers go by SFTP then. A job script, too,
# does what its author wrote, at the compute nodes.
LC_ALL=C
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
export PATH
set -f
asked=${SSH_ORIGINAL_COMMAND-}

refuse() {
  echo "hibali's gate: this is not allowed here" >&2
  exit 126
}

# exactly the agent's command, character by character
agent=@AGENT@
if [ -n "$agent" ] && [ "$asked" = "$agent" ]; then
  eval "$agent"
fi

case $asked in
  *[!A-Za-z0-9_./:=@%+,\ -]*) refuse ;;
esac
# shellcheck disable=SC2086 # split at blanks: what is left cannot be quoted
set -- $asked

case ${1-} in
  internal-sftp | /*/sftp-server)
    for server in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/lib/ssh/sftp-server \
      /usr/libexec/sftp-server; do
      [ -x "$server" ] && exec "$server"
    done
    refuse
    ;;
  sbatch | squeue | sacct | scancel | scontrol) exec "$@" ;;
esac
refuse
