"""Faults as a port has them: one piece of a published line of code is written differently, in one module of the model that was built.

A table row is (module, method, published text, what stands there instead); the method is compiled again from its own file at its own lines."""

import __future__

import ast
import inspect
import textwrap
import types

FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names if name == "annotations")


def recompiled(function, old, new, changed=()):
    """`function` with `old` replaced; `changed` are names of its module that mean something else in it."""
    function = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(function)
    text = textwrap.dedent("".join(lines))
    if old not in text:
        raise LookupError(f"{old!r} is not in {function.__qualname__}")
    tree = ast.parse(text.replace(old, new))
    ast.increment_lineno(tree, first - 1)
    tree.body[0].decorator_list = []
    scope = {**function.__globals__, **dict(changed), "__class__": None}
    exec(compile(tree, inspect.getsourcefile(function), "exec", function.__code__.co_flags & FUTURE, dont_inherit=True), scope)
    return scope[function.__name__]


def edit(owner, method, old, new):
    """`method` may be "forward>apply_rotary": what `forward` calls by that name is edited, for this module alone."""
    method, _, called = method.partition(">")
    function = inspect.unwrap(getattr(type(owner), method))
    if called:
        changed = {called: recompiled(function.__globals__[called], old, new)}
        setattr(
            owner,
            method,
            types.MethodType(
                types.FunctionType(
                    function.__code__, {**function.__globals__, **changed}, function.__name__, function.__defaults__, function.__closure__
                ),
                owner,
            ),
        )
        getattr(owner, method).__func__.__kwdefaults__ = function.__kwdefaults__
    else:
        setattr(owner, method, types.MethodType(recompiled(function, old, new), owner))


def inner(layer, place):
    return layer.get_submodule(place) if place else layer
