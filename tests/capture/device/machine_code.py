"""Machine code of a kernel as nvdisasm prints it: its loops, how many instructions they have for what they load, and how long the longest
chain of instructions is of which each one needs the one before.

Registers are followed as the text names them: an instruction writes its first operand, and predicates that stand behind it before any other
operand is read; of a pair or four registers the text names the first. That is enough for loops without calls.
"""

import dataclasses
import functools
import re

REGISTER = re.compile(r"(?<![A-Z0-9_])(UR|R|UP|P)(\d+)")
# Cycles until another instruction may read the result: 4 for what computes, on A100 and H100 (https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/,
# table 3), twice that where a pair of registers is computed, 30 of shared memory. What comes from memory is no part of a chain here.
CYCLES, CYCLES_WIDE, CYCLES_SHARED = 4, 8, 30
NO_RESULT = ("ST", "BRA", "BS", "BREAK", "BAR", "EXIT", "WARPSYNC", "MEMBAR", "NOP", "RED", "RET", "CALL", "YIELD", "ERRBAR", "CCTL", "DEPBAR")


@dataclasses.dataclass
class Instruction:
    text: str

    @property
    def operation(self):
        return re.sub(r"^@!?U?P\w+ ", "", self.text).split()[0]

    @property
    def operands(self):
        words = re.sub(r"^@!?U?P\w+ ", "", self.text).split(None, 1)
        return [word.strip() for word in words[1].split(",")] if len(words) > 1 else []

    @property
    def is_wide(self):
        return bool(re.match(r"D(ADD|FMA|MUL)|F2F\.F64|I2F\.F64|IMAD\.WIDE|UIMAD\.WIDE", self.operation))

    @property
    def is_f64(self):
        return bool(re.match(r"D(ADD|FMA|MUL|SETP)", self.operation))

    @property
    def loads(self):
        """Bytes that a thread loads from memory."""
        if not re.match(r"LDG?(\.E|$)", self.operation):
            return 0
        wide = re.search(r"\.(128|64|U16|S16|U8|S8)", self.operation)
        return {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}[wide.group(1)] if wide else 4

    @property
    def cycles(self):
        return CYCLES_SHARED if self.operation.startswith("LDS") else CYCLES_WIDE if self.is_wide else CYCLES

    def written(self):
        """Names of registers."""
        if self.operation.startswith(NO_RESULT) or not self.operands:
            return []
        made = named(self.operands[0], self.width(0))
        for operand in self.operands[1:]:
            if not re.fullmatch(r"U?P\d+", operand):
                break
            made += named(operand, 1)
        return made

    def read(self):
        guard = re.match(r"^@!?(U?P\d+) ", self.text)
        used = named(guard.group(1), 1) if guard else []
        first = 0 if self.operation.startswith(NO_RESULT) else 1
        for i, operand in enumerate(self.operands[first:], first):
            used += named(operand, self.width(i))
        return used

    def width(self, i):
        """Registers of operand `i`."""
        if self.operation.endswith(".128") and "[" not in self.operands[i]:
            return 4
        if ".64" in self.operands[i] or self.operation.endswith(".64") and "[" not in self.operands[i]:
            return 2
        if "IMAD.WIDE" in self.operation:
            return 2 if i in (0, 3) else 1
        if self.operation.startswith("F2F.F64") or self.operation.startswith("I2F.F64"):
            return 2 if i == 0 else 1
        return 2 if self.is_f64 else 1


def named(operand, width):
    return [f"{kind}{int(number) + k}" for kind, number in REGISTER.findall(operand) for k in range(width if "P" not in kind else 1)]


@dataclasses.dataclass
class Loop:
    body: list

    @property
    def bytes(self):
        return sum(i.loads for i in self.body)

    @property
    def f64(self):
        return sum(i.is_f64 for i in self.body)

    @property
    def spills(self):
        return sum(i.operation.startswith(("LDL", "STL")) for i in self.body)

    def count(self, operation):
        return sum(i.operation.startswith(operation) for i in self.body)

    @property
    def calls(self):
        """A loop may also be left by a call that never returns, right before its end."""
        return sum(i.operation.startswith("CALL") for i in self.body[:-2])

    @functools.cached_property
    def chain(self):
        """(instructions, cycles) by which a turn of the loop comes later because the turn before must be there: of the longest chain, from
        turn to turn. A load begins none: it is on its way while others are worked on."""
        return tuple(self.longest(4, cost) - self.longest(3, cost) for cost in (lambda i: 1, lambda i: i.cycles))

    def longest(self, turns, cost):
        ready = {}
        for _ in range(turns):
            for i in self.body:
                at = 0 if i.loads else max((ready.get(r, 0) for r in i.read()), default=0) + cost(i)
                for r in i.written():
                    ready[r] = at
        return max(ready.values(), default=0)


def instructions_of(text, function):
    """(instructions, {label: number of the one behind it})."""
    made, labels, inside = [], {}, False
    for line in text.splitlines():
        if line.startswith(function + ":"):
            inside = True
        elif inside and line.strip().startswith(".section"):
            break
        elif inside and (label := re.match(r"(\.L_x_\d+):", line)):
            labels[label.group(1)] = len(made)
        elif inside and (code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line)):
            made.append(Instruction(code.group(1)))
    return made, labels


def innermost_loops(text, function):
    """Loops that have no loop inside, in the order of the code."""
    code, labels = instructions_of(text, function)
    loops = []
    for end, i in enumerate(code):
        to = re.search(r"BRA.*`\((\.L_x_\d+)\)", i.text)
        if to and labels.get(to.group(1), end + 1) <= end:
            loops.append((labels[to.group(1)], end))
    inner = [a for a in loops if not any(b != a and b[0] >= a[0] and b[1] <= a[1] for b in loops)]
    return [Loop(code[first : last + 1]) for first, last in sorted(inner)]
