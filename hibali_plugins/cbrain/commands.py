"""The option of `hibali push` and `hibali sync` for the type of new files."""

from __future__ import annotations

from hibali_api.transfer_options import Types
from hibali_cli.command import AddedOptions
from hibali_cli.options import made_options

# push and sync read it: a site of any kind may have types (`StoreKind.with_file_type`)
type_options = AddedOptions(made_options(Types), after="save")
