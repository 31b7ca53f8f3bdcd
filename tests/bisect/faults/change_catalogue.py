"""Every kind of fault, by family, and every innocent kind: importing this fills change_table.TABLE."""

import faults_of_constants  # noqa: F401
import faults_of_data  # noqa: F401
import faults_of_optimizers  # noqa: F401
import faults_of_precision  # noqa: F401
import faults_of_ranks  # noqa: F401
import innocent_kinds  # noqa: F401
from change_table import TABLE, Unfit, truth

__all__ = ["TABLE", "Unfit", "truth"]
