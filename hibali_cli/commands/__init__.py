"""One module per command or group of commands, found by its name; `MODULES` names those with several."""

MODULES = {
    "apply": "transfer",
    "cat": "files",
    "cp": "files",
    "du": "files",
    "ls": "files",
    "manifest": "verify",
    "mkdir": "files",
    "mv": "files",
    "plan": "transfer",
    "pull": "transfer",
    "push": "transfer",
    "rm": "files",
    "sync": "transfer",
    "verify": "verify",
}
