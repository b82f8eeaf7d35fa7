"""Declare the options of transfers and verifications that the command line and Python have."""

import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal, TypedDict

from hibali.amounts import read_duration, read_moment_ns, read_size
from hibali.options import Option

# `hibali --help` imports this module, which therefore imports nothing of transfers


class Deletion(TypedDict, total=False):
    """What is deleted at the target."""

    delete: Annotated[bool, Option("Delete extraneous files at the target, at the end, within --max-delete.")]
    max_delete: Annotated[
        int | str,
        Option(
            "Refuse to delete more files than this (default: 50 or 10 %, the larger one).", metavar="N|N%"
        ),
    ]
    allow_empty_source: Annotated[
        bool, Option("Allow --delete to delete all files of the target if the source is empty.")
    ]


class Removal(TypedDict, total=False):
    """What is removed at the source."""

    move: Annotated[
        bool,
        Option(
            "At the end, remove at the source what is proven by sha256 at the target, and folders that become empty."
        ),
    ]


class Backup(TypedDict, total=False):
    """What may replace files, and where replaced and deleted files go."""

    backup_dir: Annotated[
        str | os.PathLike[str],
        Option(
            "Move files that are replaced or deleted to LOCATION, a folder at the target's site.",
            metavar="LOCATION",
            use="written",
        ),
    ]
    accept_rot: Annotated[
        bool,
        Option(
            "Also move files of a site whose content is not as recorded although size, time and inode are:"
            " damaged, or rewritten with their old time."
        ),
    ]


class Pace(TypedDict, total=False):
    """How fast files are moved."""

    bwlimit: Annotated[
        int | str,
        Option(
            "Limit the bytes per second (500K, 20M); the limits of the sites apply, too.",
            metavar="RATE",
            read=read_size,
        ),
    ]
    workers: Annotated[
        int,
        Option(
            "Move files with at most N processes of this machine, as far as the transfer is worth it (default: by its cores).",
            metavar="N",
            limits=(1, 256),
        ),
    ]


class Ways(TypedDict, total=False):
    """The way of the bytes."""

    via: Annotated[
        Literal["auto", "globus", "stream"],
        Option(
            "Transfer with Globus (if both endpoints have a collection), or through this machine.",
            default="auto",
        ),
    ]
    give_up_after: Annotated[
        float | str,
        Option(
            "Cancel a Globus task that has made no progress for DURATION because of an error.",
            metavar="DURATION",
            read=read_duration,
        ),
    ]
    cancel_on_interrupt: Annotated[
        bool, Option("Cancel the Globus task on Ctrl-C; without it the task continues.")
    ]


class Digests(TypedDict, total=False):
    """Whether digests are compared."""

    checksum: Annotated[bool, Option("Compare by sha256 at both ends instead of by size and time.")]
    recorded: Annotated[
        bool,
        Option(
            "With --checksum, use the recorded digests of unchanged files, and record all others.",
            needs="checksum",
        ),
    ]


class Patterns(TypedDict, total=False):
    """The names that are selected."""

    include: Annotated[
        Sequence[str],
        Option("Only names that match the pattern (as in .gitignore); repeatable.", metavar="PATTERN"),
    ]
    exclude: Annotated[
        Sequence[str],
        Option("Leave out names that match the pattern (as in .gitignore); repeatable.", metavar="PATTERN"),
    ]


class Names(TypedDict, total=False):
    """A list of names."""

    files_from: Annotated[
        Iterable[str | bytes],
        Option(
            "Transfer only the names in FILE, one per line, relative to the source; a folder includes its contents.",
            metavar="FILE|-",
            python="The only names, relative to the source; a folder includes its contents.",
        ),
    ]


class Facts(TypedDict, total=False):
    """The times and sizes that are selected."""

    newer: Annotated[
        datetime | timedelta | str,
        Option(
            "Select only files modified within DURATION (2d, 12h) or since TIME (2026-01-31).",
            metavar="DURATION|TIME",
            read=read_moment_ns,
        ),
    ]
    min_size: Annotated[
        int | str,
        Option("Select only files of at least SIZE (10K, 5M, 1GiB).", metavar="SIZE", read=read_size),
    ]
    max_size: Annotated[
        int | str,
        Option("Select only files of at most SIZE (10K, 5M, 1GiB).", metavar="SIZE", read=read_size),
    ]


class Renaming(TypedDict, total=False):
    """The names at the target."""

    rename: Annotated[
        Sequence[str],
        Option(
            "Rewrite each path below the source as sed does, by a Python regular expression: s/PATTERN/REPLACEMENT/; repeatable.",
            metavar="RULE",
        ),
    ]


class Metadata(TypedDict, total=False):
    """What is transferred beside contents, and what is required of it."""

    links: Annotated[
        Literal["keep", "skip"], Option("Transfer symlinks as symlinks, or skip them.", default="keep")
    ]
    modes: Annotated[
        Literal["execute", "keep"],
        Option(
            "The permission bits to transfer: the execute bit, or all nine, also of folders.",
            default="execute",
        ),
    ]
    hard_links: Annotated[
        bool,
        Option(
            "Preserve hard links; the content of a file with several names is sent once.",
            flags="-H --hard-links",
        ),
    ]
    keep_empty_folders: Annotated[
        bool,
        Option("In a bucket, store each empty folder as an empty object NAME/, as rclone and others do."),
    ]
    xattrs: Annotated[bool, Option("Also transfer extended attributes of the user namespace (user.*).")]
    specials: Annotated[
        Literal["fail", "skip"],
        Option("Report devices, FIFOs and sockets as failures, or skip them.", default="fail"),
    ]
    recall: Annotated[
        bool, Option("Also read files that are on tape; without it they are reported as failures.")
    ]
    require_proof: Annotated[
        Literal["digest", "recorded", "claimed", "size", "none"] | StrEnum,
        Option(
            "Exit 6 when a transferred file has a weaker verification than this.",
            python="Raise `IncompleteError` when a transferred file has a weaker verification than this.",
        ),
    ]


class Saving(TypedDict, total=False):
    """How files that come into a dataset are saved."""

    push_to: Annotated[
        Sequence[str],
        Option(
            "After saving files in a dataset, push it to SIBLING (`datalad push`); repeatable.",
            metavar="SIBLING",
            needs="save",
            reason=": only saved files can be pushed",
        ),
    ]
    save: Annotated[
        bool,
        Option(
            "Do not commit files that are transferred into a dataset.",
            flags="--no-save",
            default=True,
            python="Commit files that are transferred into a dataset.",
        ),
    ]


_On = Annotated[
    str,
    Option(
        "Use the compute nodes of SITE; by default, of the site that has the folder.",
        metavar="SITE",
        needs="nodes",
        hint="Add --nodes N.",
    ),
]


class MovingNodes(TypedDict, total=False):
    """The compute nodes that move files."""

    nodes: Annotated[
        int,
        Option(
            "Let N tasks of a job array move the files at the site's compute nodes.",
            metavar="N",
            limits=(1, 10_000),
        ),
    ]
    on: _On
    detach: Annotated[
        bool,
        Option(
            "End once these tasks are submitted (exit 5); the same command finishes the transfer.",
            needs="nodes",
            hint="Add --nodes N.",
            python="Raise `TryLaterError` once these tasks are submitted; the same call finishes the transfer.",
        ),
    ]


class HashingNodes(TypedDict, total=False):
    """The compute nodes that hash files."""

    nodes: Annotated[
        int,
        Option(
            "Let N tasks of a job array hash the files at the site's compute nodes.",
            metavar="N",
            limits=(1, 10_000),
        ),
    ]
    on: _On


class Packing(TypedDict, total=False):
    """The packs that files are put into."""

    pack: Annotated[
        bool, Option("Pack the files into a few tar files, each with an index, for tape or inode quotas.")
    ]
    pack_size: Annotated[
        int | str,
        Option(
            "With --pack, the maximum size of a tar file (default: 1GiB).",
            metavar="SIZE",
            read=read_size,
            needs="pack",
            hint="See: hibali push --help",
        ),
    ]


class Types(TypedDict, total=False):
    """The types of files."""

    as_type: Annotated[
        str,
        Option(
            "The type of new files at a CBRAIN portal, such as TextFile; by default guessed from their names.",
            metavar="TYPE",
        ),
    ]


class Direct(TypedDict, total=False):
    """Whether this machine only watches."""

    direct: Annotated[bool, Option("Copy directly from one ssh site to another, with the ssh of the first.")]


class Checking(TypedDict, total=False):
    """What files are compared with, and which of them."""

    manifest: Annotated[
        str | os.PathLike[str],
        Option(
            "Compare with the digests in FILE (`-`: from stdin).",
            metavar="FILE",
            use="input",
            python="Compare with the digests in this file.",
        ),
    ]
    bagit: Annotated[
        bool,
        Option(
            "Read FILE as a BagIt manifest (default for the name manifest-sha256.txt).",
            needs="manifest",
            python="Read `manifest` as a BagIt manifest (default for the name manifest-sha256.txt).",
        ),
    ]
    exact: Annotated[bool, Option("Also list files without a known digest, and exit 6.")]
    sample: Annotated[str, Option("Check only a random sample of this many files.", metavar="N|N%")]
    seed: Annotated[
        int, Option("Repeat the sample of this seed.", metavar="NUMBER", limits=(0, 10**18), needs="sample")
    ]
    resume: Annotated[bool, Option("Continue where the last verification with the same options was stopped.")]
