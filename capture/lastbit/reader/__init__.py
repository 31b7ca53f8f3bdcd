"""Reading captures: `lastbit.open`, `lastbit.diff`, `lastbit.bisect`, `lastbit.replay` and what they give."""

from .answer import Answer, bisect, diff, replay
from .capture import Capture, DType, Line, Notice, Op, Scalar, Statistics, Step, Value
from .capture import open_capture as open
from .layout import Error

__all__ = ["Answer", "Capture", "DType", "Error", "Line", "Notice", "Op", "Scalar", "Statistics", "Step", "Value", "bisect", "diff", "open", "replay"]
