"""When a step of a recording opens and closes: what happens in the program becomes an event of steps.py, whose table says what it means."""

import sys
import weakref

import torch

from . import devices, library
from .gradients import is_differentiated_later
from .steps import BACKED, BEGIN, CLOSED, CUT


class SessionSteps:
    """The part of a Session that opens and closes steps; it holds nothing of its own."""

    def outermost(self, module, args, kwargs=None):
        """An outermost forward begins: this is where steps close and open."""
        fresh, step = not self.modules.is_root(module), self.step
        if fresh:
            self.modules.add_root(module)
            self.collect_parameters()
        if not self.manual and not self.marks.name and not self.threads.in_backward() and not self.modules.shapes_only(args):
            if self.functions.module_called(module):
                return
            with self.lock:  # of two threads only one closes a step
                self.see(self.forward_event(module), id(module))
        if self.live:
            if fresh and step == self.step:
                self.roles.name_tensors()
            self.roles.name_inputs(module, args, kwargs)

    def forward_event(self, module):
        """What the forward of an outermost module is to the steps: see steps.py."""
        if self.steps.state == CLOSED and next(module.parameters(), None) is None:
            self.note("bare", type(module).__name__)
            return None  # a loss or an activation called by itself opens no step
        grad = torch.is_grad_enabled() or is_differentiated_later()
        inside = self.optimizers.running()
        if inside is not None:
            inside.forwards += grad
            return "forward" if inside.forwards == 1 and grad else "glance"
        if grad:
            self.look_for_updates()
            self.look_for_gradients()
        self.forward_is_open = self.forward_is_open or grad
        if self.optimizers.exist or self.steps.clears:
            return "forward" if grad else "glance"
        if self.steps.trains:
            return "byhand" if grad else "glance"
        return "alone" if self.opened_by in (None, id(module)) else "glance"

    forward_is_open = False  # one in grad mode that neither a backward nor an update followed

    def see(self, event, root=None):
        """Something happened that the end of a step may hang on. `root`: id of the module whose forward it was. While a graph is captured
        it happens to no step, but will whenever the graph runs."""
        if self.graphs.events is not None:
            if event is not None:
                self.graphs.events.append((event, root))
            return
        if event == "update":
            self.forward_is_open = False
        if event is None or self.manual or self.over or bool(self.marks.name) != (event == "mark"):
            return
        action = self.steps.see(event)
        if action == CUT:
            self.end_step(True)
        if action in (BEGIN, CUT):
            self.begin_step(root)
        self.functions.happened()

    def happened(self, event):
        """The same, told by what the program calls: nothing of ours may come out of it."""
        if self.dead or torch.compiler.is_compiling():
            return
        try:
            with self.lock:
                self.see(event)
        except Exception as error:
            self.fail(error)

    def guarded(self, function, *args):
        if not self.dead:
            try:
                function(*args)
            except Exception as error:
                self.fail(error)

    def saw_backward(self):
        """The outermost backward of a thread has ended."""
        self.forward_is_open = False
        self.optimizers.backward_ended()
        self.functions.backward_ended()
        if not self.manual and not self.over:
            parameters = [p for p in (ref() for ref in self.parameters) if p is not None]
            self.gradients.remember(parameters)
            if not self.optimizers.exist:
                self.weights.remember(parameters)
            self.see("backward")

    def zeroed(self, parameters, by_itself):
        """`zero_grad` of an optimizer or of a module; `by_itself`: in the middle of what it does to parameters."""
        if self.manual or self.over or self.optimizers.running() is not None:
            return
        if self.forward_is_open:
            self.steps.zeroed_late()
        if by_itself:
            self.gradients.forget()
            self.see("kept")
        elif self.gradients.took(parameters):
            self.see("cleared")

    def look_for_updates(self):
        """Updates that the program writes without an optimizer come without word of them."""
        if self.steps.state == BACKED and not self.optimizers.exist and self.weights.are_written():
            self.see("update")

    def look_for_gradients(self):
        """Gradients that were zeroed or replaced by hand come without word of it."""
        if self.gradients.are_gone():
            self.see("cleared")

    def collect_parameters(self):
        found = {}
        for root in self.modules.living():
            for p in root.parameters():
                found[id(p)] = p
        for optimizer in self.optimizers.living():
            for group in optimizer.param_groups:
                found.update((id(p), p) for p in group["params"])
        found.update((id(p), p) for p in self.functions.parameters())
        self.parameters = [weakref.ref(p) for p in found.values()]

    def outermost_left(self, module, output):
        pass

    def say_step(self):
        """For `lastbit record`: a step ran, and which one runs now."""
        if self.step_open or self.step >= 0:
            self.note("step", str(self.step))
            if self.settings.get("note"):
                self.settings["note"]("at", str(self.step))

    def begin_step(self, module=None, number=None, shard=None):
        if self.step_open and self.live:  # found by ourselves before the program said its first
            self.end_step(False)
        self.step = self.step + 1 if number is None else number
        if not self.functions.guessed:
            self.say_step()
        self.step_open = True
        self.opened_by = module
        self.graphs.install()
        if self.dead or not self.wants_step(self.step):
            self.rest()
            return
        if not self.opened and not self.wants_rank(self.rank()[0]):
            self.stand_aside()
            return
        self.modules.watch_all()
        if not self.threads.push():
            return
        if not self.opened and not self.open_archive():
            return
        if not self.recorded_last or self.threads.together:
            self.native.step_skip()  # what other threads did meanwhile was not seen
        self.native.set_threads(torch.get_num_threads())
        generators = devices.generators()
        self.native.step_begin(self.step, str(shard or ""))
        self.live = True
        self.recorded_last = True
        self.roles.name_tensors()
        for name, state in generators.items():
            self.roles.name(state, library.STATE, 0, name)
            self.tap(name, state)
        self.optimizers.step_began()
        self.threads.note_strangers()

    def stand_aside(self):
        """A rank that is not recorded: no op and no module of it calls us any more."""
        self.dead = True
        self.modules.remove()
        self.optimizers.remove()
        self.threads.pop()

    over = False  # no step to come is wanted
    RESTS_AFTER = 3  # steps: by then a program has called what it calls outermost

    def rest(self):
        """The step that begins is not wanted: between two that are it costs as little as can be."""
        if self.step >= self.RESTS_AFTER and not self.manual and self.modules.handles:
            self.modules.watch_roots()

    recorded_last = False
    said_memory = False

    def end_step(self, complete):
        self.step_open = False
        if not self.live:
            self.recorded_last = False
            return
        held = self.collectives.step_closed()
        if self.settings["ring"] and not self.triggered and self.native.nonfinite():
            self.triggered = "a parameter, a gradient or an optimizer state is not finite"
        if self.triggered:
            self.step_open = True
            self.write_window()
            self.step_open = False
        self.live = False
        self.native.step_end(bool(complete))
        del held
        if self.triggered:
            self.close_archive()
            self.dead = True
            print("lastbit: the flight recorder wrote its steps up to %d: %s" % (self.step, self.triggered), file=sys.stderr)
            return
        if self.settings["ring"] and not self.said_memory:
            self.said_memory = True
            megabytes = self.native.bytes_so_far() / 1e6
            print(
                "lastbit: the flight recorder holds %d to %d steps in memory; the first took %.1f MB"
                % (self.settings["ring"], 2 * self.settings["ring"], megabytes),
                file=sys.stderr,
            )
        self.native.sweep()
        if not self.wants_step(self.step + 1):
            self.threads.pop()
        if self.step >= self.last_step and not self.manual:
            self.over = True
            self.modules.remove()
