#!/bin/sh
# The forced command for accounts that hibali uses: ForceCommand in sshd_config, or command="..." in authorized_keys,
# together with `restrict`. It allows only the SFTP server, the agent's one constant command and the scheduler's
# commands with plain arguments.
#
# The agent is a program that hibali sends on standard input: a client that can start it has all permissions of
# this account. `hibali sites gate --no-agent` prints the script without it; hibali then transfers files by SFTP. A job
# script, too, runs the commands that its author wrote, on the compute nodes.
LC_ALL=C
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
export PATH
set -f
requested=${SSH_ORIGINAL_COMMAND-}

refuse() {
  echo "hibali's forced command: this command is not allowed" >&2
  exit 126
}

# exactly the agent's command, character by character
agent=@AGENT@
if [ -n "$agent" ] && [ "$requested" = "$agent" ]; then
  eval "$agent"
fi

case $requested in
  *[!A-Za-z0-9_./:=@%+,\ -]*) refuse ;;
esac
# shellcheck disable=SC2086 # split at blanks: the remaining characters cannot quote
set -- $requested

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
