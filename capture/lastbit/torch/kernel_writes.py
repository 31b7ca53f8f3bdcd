"""Through which of its parameters the code of a Triton kernel may store.

The source is read and not run. A name carries a parameter when something computed from the parameter was assigned to it. A parameter
may be written unless each use of what carries it is known to write nothing: loading, pointer arithmetic, comparisons, and the
functions of triton.language that only compute. A store, an atomic, a helper that gets a pointer: all of them may write. So the answer
errs on one side: what is called read-only is.
"""

import ast
import inspect
import textwrap

# Of triton.language: what is loaded is no pointer of the program's; what these make of a pointer still is one.
_LOADS = {"load", "load_tensor_descriptor"}
_KEEPS = {
    "make_block_ptr",
    "make_tensor_descriptor",
    "advance",
    "multiple_of",
    "max_contiguous",
    "max_constancy",
    "cast",
    "to",
    "broadcast",
    "broadcast_to",
    "reshape",
    "view",
    "expand_dims",
    "permute",
    "trans",
    "where",
    "full",
    "zeros",
    "zeros_like",
    "arange",
    "minimum",
    "maximum",
    "min",
    "max",
    "cdiv",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "abs",
    "sigmoid",
    "fma",
    "dot",
    "sum",
    "static_assert",
    "static_print",
    "device_print",
    "range",
    "static_range",
    "len",
    "float",
    "int",
    "bool",
}


def parameters(function, names):
    """The names of those that may be written, of `names`; None where the source cannot be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, IndentationError):
        return None
    body = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if body is None or [a.arg for a in body.args.args] != list(names):
        return None
    uses = _Uses(names, getattr(function, "__globals__", {}))
    while uses.grew:  # a loop may carry a pointer round
        uses.grew = False
        for statement in body.body:
            uses.visit(statement)
    return tuple(name for name in names if name in uses.written)


class _Uses(ast.NodeVisitor):
    def __init__(self, names, globals):
        self.carried = {name: {name} for name in names}  # name -> parameters that it carries
        self.globals = globals
        self.written = set()
        self.grew = True

    def carries(self, node):
        """The parameters that the value of an expression may point into."""
        if node is None:
            return set()
        if isinstance(node, ast.Name):
            return self.carried.get(node.id, set())
        if isinstance(node, ast.Compare):
            return set()
        if isinstance(node, ast.Call):
            return set() if self.what(node.func) in _LOADS else self.of_children(node)
        return self.of_children(node)

    def of_children(self, node):
        return set().union(*[self.carries(child) for child in ast.iter_child_nodes(node)])

    def what(self, called):
        """The name of a function of triton.language or of Python; None: another one."""
        if isinstance(called, ast.Attribute):
            owner = self.found(called.value)
            if owner is None:  # a method of a value that the kernel computes
                return called.attr
            return called.attr if getattr(owner, "__name__", "").startswith("triton.language") else None
        if isinstance(called, ast.Name):
            known = self.globals.get(called.id)
            if called.id in self.carried:  # a function that was passed in
                return None
            if known is None:
                return called.id if called.id in ("range", "len", "float", "int", "bool", "min", "max") else None
            module = getattr(known, "__module__", None) or getattr(getattr(known, "fn", None), "__module__", None) or ""
            return called.id if module.startswith("triton.language") else None
        return None

    def found(self, node):
        """A module, where an expression names one of the function's globals; None where it is a value of the kernel's."""
        if isinstance(node, ast.Name):
            return None if node.id in self.carried else self.globals.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.found(node.value)
            return getattr(owner, node.attr, None) if owner is not None else None
        return None

    def visit_Call(self, node):
        self.generic_visit(node)
        what = self.what(node.func)
        if what in _LOADS or what in _KEEPS:
            return
        self.written |= self.of_children(node)

    def assign(self, targets, value):
        carries = self.carries(value)
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    before = self.carried.setdefault(node.id, set())
                    self.grew |= not carries <= before
                    before |= carries

    def visit_Assign(self, node):
        self.generic_visit(node)
        self.assign(node.targets, node.value)

    def visit_AugAssign(self, node):
        self.generic_visit(node)
        self.assign([node.target], node.value)

    def visit_AnnAssign(self, node):
        self.generic_visit(node)
        self.assign([node.target], node.value)

    def visit_NamedExpr(self, node):
        self.generic_visit(node)
        self.assign([node.target], node.value)

    def visit_For(self, node):
        self.assign([node.target], node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node):
        self.assign([node.target], node.iter)
        self.generic_visit(node)

    def visit_With(self, node):
        for item in node.items:
            if item.optional_vars is not None:
                self.assign([item.optional_vars], item.context_expr)
        self.generic_visit(node)
