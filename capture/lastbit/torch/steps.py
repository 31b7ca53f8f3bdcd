"""Where a step ends: an automaton over what the program was seen to do. It knows nothing of torch, of threads or of recording.

A step closes lazily, at the next outermost forward that computes gradients, once something has said that it is over. States:

    CLOSED   no step has begun
    OPEN     forwards ran, and no backward that left gradients of parameters since the step began or since they were given back
    BACKED   a backward ran, and gradients that it left are at hand
    SPENT    the gradients were zeroed or replaced, or a scheduler stepped: an iteration that a scaler or a guard skipped
    UPDATED  an optimizer stepped, or a scaler did so and found that it had better not
    BARE     the program calls no module: a step is what lies between two updates
    SOLE     so far the program neither trains nor calls a module: all that it does is one step (functions.py)

What each event does ("begin": a step begins; "cut": the open one ends and another begins; a bare state: the step stays open):

    event      what happened                             CLOSED       OPEN      BACKED    SPENT        UPDATED      BARE      SOLE
    forward    an outermost forward in grad mode 2       begin OPEN   OPEN      BACKED 1  cut OPEN     cut OPEN     cut OPEN  cut OPEN
    glance     one in no-grad mode                       begin OPEN   OPEN      BACKED    SPENT        UPDATED      BARE      SOLE
    alone      one in a program that never trains        begin OPEN   cut OPEN  cut OPEN  cut OPEN     cut OPEN     cut OPEN  cut OPEN
    byhand     one in grad mode where no optimizer is,   begin OPEN   OPEN      cut OPEN  cut OPEN     cut OPEN     cut OPEN  cut OPEN
               a backward has run, and none was
               "cleared" yet
    backward   the outermost backward ended              CLOSED       BACKED    BACKED    SPENT        UPDATED      BARE      BACKED
    cleared    all gradients it left were zeroed, or     CLOSED       OPEN      SPENT     SPENT        UPDATED      BARE      SOLE
               are others now, with no update of them
    kept       an optimizer did so in its own update     CLOSED       OPEN      OPEN      SPENT        UPDATED      BARE      SOLE
               (the first half of SAM): it goes on
    update     an optimizer's step, or a scaler's,       begin BARE   UPDATED   UPDATED   UPDATED      UPDATED      cut BARE  UPDATED
               ended; or, where no optimizer is,
               parameters were written since backward
    schedule   a scheduler's step                        CLOSED       OPEN      SPENT     SPENT        UPDATED      BARE      SOLE
    sole       an op computed, where no module was made  begin SOLE   OPEN      BACKED    SPENT        UPDATED      BARE      SOLE
    long       a step of functions has 131,072 ops, and  CLOSED       cut OPEN  BACKED    SPENT        UPDATED      BARE      cut SOLE
               no backward has run
    mark       what --step-at names was called           begin OPEN   cut OPEN  cut OPEN  cut OPEN     cut OPEN     cut OPEN  cut OPEN

 1  Or "cut OPEN", where the program zeroes gradients between a forward and its backward and has so far made every update of one
    backward: the gradients at hand are of an iteration that was skipped. (Elsewhere they are being accumulated.)
 2  So is one in the forward of an autograd.Function that is called in grad mode (an adjoint method, a reversible network, reentrant
    checkpoints): its backward computes the gradients. A forward that a backward runs is no event.

Inside an optimizer's own step (LBFGS, SAM, Lightning's automatic optimization give it a closure) only the first forward counts, as
"forward"; the others are "glance", and "cleared" and "kept" are nothing: they belong to the update. With --step-at only "mark" counts.
"""

CLOSED, OPEN, BACKED, SPENT, UPDATED, BARE, SOLE = STATES = ("CLOSED", "OPEN", "BACKED", "SPENT", "UPDATED", "BARE", "SOLE")
BEGIN, CUT, STAY = "begin", "cut", "stay"

_TABLE = """
forward   begin:OPEN  OPEN      BACKED    cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN
glance    begin:OPEN  OPEN      BACKED    SPENT     UPDATED   BARE      SOLE
alone     begin:OPEN  cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN
byhand    begin:OPEN  OPEN      cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN
backward  CLOSED      BACKED    BACKED    SPENT     UPDATED   BARE      BACKED
cleared   CLOSED      OPEN      SPENT     SPENT     UPDATED   BARE      SOLE
kept      CLOSED      OPEN      OPEN      SPENT     UPDATED   BARE      SOLE
update    begin:BARE  UPDATED   UPDATED   UPDATED   UPDATED   cut:BARE  UPDATED
schedule  CLOSED      OPEN      SPENT     SPENT     UPDATED   BARE      SOLE
sole      begin:SOLE  OPEN      BACKED    SPENT     UPDATED   BARE      SOLE
long      CLOSED      cut:OPEN  BACKED    SPENT     UPDATED   BARE      cut:SOLE
mark      begin:OPEN  cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN  cut:OPEN
"""


def _read(table):
    cells = {}
    for line in table.split("\n"):
        event, *row = line.split() or [None]
        for state, cell in zip(STATES, row):
            action, _, after = cell.rpartition(":")
            cells[event, state] = (action or STAY, after)
    return cells


_CELLS = _read(_TABLE)
EVENTS = tuple(dict.fromkeys(event for event, _ in _CELLS))


class Steps:
    def __init__(self):
        self.state = CLOSED
        self.late = False  # gradients were zeroed between a forward and its backward
        self.updates = 0  # that were made of backwards
        self.backwards = 0  # since the last update
        self.accumulates = False  # an update was made of more than one backward
        self.trains = False  # a backward has run
        self.clears = False  # gradients that one left were zeroed or replaced

    def see(self, event):
        """BEGIN, CUT or STAY."""
        if event == "forward" and self.state == BACKED and self.late and self.updates and not self.accumulates:
            self.state = OPEN  # should it accumulate after all, the next update tells: its backwards are counted on
            return CUT
        self._remember(event)
        action, self.state = _CELLS[event, self.state]
        return action

    def _remember(self, event):
        if event == "backward":
            self.backwards += 1
            self.trains = True
        elif event == "update":
            self.updates += self.backwards > 0
            self.accumulates = self.accumulates or self.backwards > 1
            self.backwards = 0
        elif event == "cleared":
            self.clears = True
            self.backwards = 0

    def zeroed_late(self):
        """Gradients were zeroed, whether there were any or not, after a forward whose backward has not run."""
        self.late = True
