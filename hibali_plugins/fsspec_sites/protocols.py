"""Declare what is known about fsspec's protocols; what is unknown is probed (transfers.stores.server.probe)."""

from __future__ import annotations

from dataclasses import dataclass

from transfers.stores.server.files import Exclusive, Put, Traits


@dataclass(frozen=True, slots=True)
class Protocol:
    """The certain facts of a protocol; the defaults are the safe assumptions for unknown ones.

    Attributes:
        package: The package on PyPI that has the implementation.
        keys: Whether paths are keys of objects, so that folders exist only as parts of keys.
        put: How files are put.
        exclusive: How a lock is created.
        threads: Calls at a time; many implementations are not thread-safe.
        retries: Whether the implementation itself retries failed requests.
        secure: The option that turns on TLS, for protocols that are cleartext without it.
        refuses: Characters that names cannot contain. Azure takes a backslash for a slash, and lists names in XML
            1.0, which has no control characters.
    """

    package: str = ""
    keys: bool = False
    put: Put = Put.UNKNOWN
    exclusive: Exclusive = Exclusive.NONE
    threads: int = 1
    retries: bool = False
    secure: str = ""
    refuses: bytes = b""

    @property
    def traits(self) -> Traits:
        """What the store must know about it."""
        return Traits("fsspec", self.keys, self.put, self.exclusive, self.threads, self.refuses)


_GCS = Protocol("gcsfs", True, Put.STREAMED, Exclusive.CREATE, 16, True)
_AZURE = Protocol("adlfs", True, Put.STREAMED, Exclusive.CREATE, 16, True)
_S3 = Protocol("s3fs", True, Put.STREAMED, Exclusive.CREATE, 16, True)
_LOCAL = Protocol("fsspec", put=Put.RENAMED, exclusive=Exclusive.OPEN, threads=8)
_HDFS = Protocol("pyarrow", put=Put.RENAMED, threads=4)
_SFTP = Protocol("paramiko", put=Put.RENAMED)

# Sources: the implementations' code, read in 2026 (gcsfs 2026.10, adlfs 2026.8, s3fs and fsspec 2026.9, fsspec-xrootd 0.5).
_KNOWN = {
    "memory": Protocol("fsspec", put=Put.WHOLE, threads=8),
    "file": _LOCAL,
    "local": _LOCAL,
    "gs": _GCS,
    "gcs": _GCS,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "s3": _S3,
    "s3a": _S3,
    "hdfs": _HDFS,
    "arrow_hdfs": _HDFS,
    "webhdfs": Protocol("requests", put=Put.RENAMED, threads=4, secure="use_https"),
    "sftp": _SFTP,
    "ssh": _SFTP,
    "smb": Protocol("smbprotocol", put=Put.RENAMED),
    "ftp": Protocol("fsspec", put=Put.RENAMED, secure="tls"),
    "dropbox": Protocol("dropboxdrivefs"),
    # what follows a question mark are parameters for the server; listings separate names by line breaks
    "root": Protocol("fsspec-xrootd", put=Put.RENAMED, exclusive=Exclusive.CREATE, threads=8, refuses=b"?\n"),
}

# Filesystems that show or cache another one, are not storage, or that a kind of hibali reads better.
REFUSED = frozenset(
    {
        "asynclocal",
        "asyncwrapper",
        "blockcache",
        "cached",
        "dask",
        "data",
        "dir",
        "filecache",
        "generic",
        "git",
        "github",
        "hibali",  # shows the sites of config.toml, also this one
        "http",
        "https",
        "jlab",
        "jupyter",
        "libarchive",
        "reference",
        "simplecache",
        "tar",
        "webdav",
        "zip",
    }
)


def known_protocol(word: str) -> Protocol:
    """Return what is known about a protocol; of an unknown one nothing, except the safe assumptions."""
    return _KNOWN.get(word, Protocol())
