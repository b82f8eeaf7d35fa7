from hibali.cancellation import Cancellation as Cancellation
from hibali.errors import AccessError as AccessError
from hibali.errors import CancelledError as CancelledError
from hibali.errors import HibaliError as HibaliError
from hibali.errors import IncompleteError as IncompleteError
from hibali.errors import NotFoundError as NotFoundError
from hibali.errors import NotVerifiedError as NotVerifiedError
from hibali.errors import OutputsMissingError as OutputsMissingError
from hibali.errors import RefusedError as RefusedError
from hibali.errors import RunFailedError as RunFailedError
from hibali.errors import TryLaterError as TryLaterError
from hibali.errors import UsageError as UsageError
from hibali_api import pipelines as pipelines
from hibali_api import runs as runs
from hibali_api import sites as sites
from hibali_api.files import du as du
from hibali_api.files import ls as ls
from hibali_api.files import mkdir as mkdir
from hibali_api.files import mv as mv
from hibali_api.files import rm as rm
from hibali_api.files import stat as stat
from hibali_api.opening import open as open  # noqa: A004
from hibali_api.progress import Progress as Progress
from hibali_api.runs import Run as Run
from hibali_api.runs import run as run
from hibali_api.transfers import IncompleteTransferError as IncompleteTransferError
from hibali_api.transfers import Plan as Plan
from hibali_api.transfers import apply as apply
from hibali_api.transfers import cp as cp
from hibali_api.transfers import plan as plan
from hibali_api.transfers import pull as pull
from hibali_api.transfers import push as push
from hibali_api.transfers import sync as sync
from hibali_api.transfers import verify as verify

__version__: str
