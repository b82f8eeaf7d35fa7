"""Files of a machine whose service offers the usual commands one by one: stat, ls, mkdir, tar, sha256sum (FirecREST, IRI)."""
