"""A parsed kernel to one Python generator function: `entry(C, G, state)`.

Each PTX register is a local variable that holds a vector of lanes (kinds.py); `m` is the mask of
the active lanes, and `ALL` itself where all are; `pc` is the basic block. The generator yields
what it waits for. It returns None when its lanes are done, or `(keys, pend, registers)` when the
warps of the gang part: the warps with equal keys go on together, from that state.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import control, effects, kinds, lanes, matrices, values
from .homes import choose
from .ptx import Instruction, Kernel, identifier
from .rules import rule_for

PARAMETER_BASE = 0x7_0000_0000_0000
SPIN = ("spin",)
ENDS = ("ret", "exit")
EMITTERS: dict[str, Callable] = values.EMITTERS | effects.EMITTERS | matrices.EMITTERS
NO_EFFECT = {  # here
    "prefetchu", "setmaxnreg", "griddepcontrol", "membar", "applypriority", "pragma",
    "createpolicy",
}  # fmt: skip


class Translator:
    """Translates one kernel; `entry(lanes)` is its function for gangs of that many lanes.

    exact_fma: round a fused multiply-add once, at six times the cost. mutants: knows what may stand
    for an instruction, `variants(instruction)`, and which of it does, `selected`; it is told which
    were `reached`.
    """

    def __init__(self, kernel: Kernel, *, exact_fma: bool = False, mutants: Any = None) -> None:
        self.kernel, self.exact_fma, self.mutants = kernel, exact_fma, mutants
        self.homes = choose(kernel)
        self.constants: dict[str, tuple[int, str]] = {}
        self.specials: set[str] = set()
        self.groups: set[str] = set()  # cta_group::1 or ::2, of tcgen05
        self.lines: list[str] = []
        self.ptx_line: dict[int, int] = {}
        self.depth, self.current = 2, 0
        self.saved_mask = "m"
        self.parameter_address: dict[str, int] = {}
        offset = 0
        for parameter in kernel.parameters:
            offset = -(-offset // parameter.align) * parameter.align
            self.parameter_address[parameter.name] = PARAMETER_BASE + offset
            offset += parameter.size
        self._entries: dict[int, Callable] = {}
        self.blocked: set[int | None] = set()  # PTX lines where a gang has waited
        self._code = self._translate()

    def entry(self, size: int) -> Callable:
        if size not in self._entries:
            scope = self._scope(size)
            exec(self._code, scope)
            self._entries[size] = scope["entry"]
        return self._entries[size]

    # Emission.
    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)
        self.ptx_line[len(self.lines)] = self.current

    @contextmanager
    def indented(self, header: str) -> Iterator[None]:
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1

    # Operands.
    def constant(self, bits: int, kind: str) -> str:
        width = 64 if kind == "f32x2" else 8 * kinds.DTYPES[kind].itemsize
        bits &= (1 << width) - 1
        name = f"K{kind}_{bits:x}"
        self.constants[name] = (bits, kind)
        return name

    def home(self, text: str) -> str | None:
        return self.homes.get(identifier(text))

    def read(self, text: str, kind: str) -> str:
        """The expression of a source operand, as `kind`."""
        if text.startswith("!"):
            return f"~{self.read(text[1:], kind)}"
        name = identifier(text)
        if home := self.homes.get(name):
            if home != kind and self.kernel.registers[name] != (width := width_of(kind)):
                if {self.kernel.registers[name], width} <= {8, 16}:
                    return kinds.seen_as(name, home, kind)
                return f"{kinds.seen_as(name, home, plain(home))}.astype({kind.upper()})"
            return kinds.seen_as(name, home, kind)
        if text.startswith("%"):
            self.specials.add(text)
            return kinds.seen_as(f"S{name}", "u32", kind)
        return self.in_window(text, self.constant(self.immediate(text), kind), kind)

    def in_window(self, text: str, constant: str, kind: str) -> str:
        """The address of a shared variable is that in the CTA of the gang."""
        shared = text in self.kernel.shared
        return f"({constant} + {kind.upper()}(G.window))" if shared else constant

    def immediate(self, text: str) -> int:
        """The bits of a literal, or the address of a shared variable or a parameter."""
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", text):
            return int(match.group(1) or match.group(2), 16)
        if re.fullmatch(r"-?(\d+|0[xX][0-9a-fA-F]+)U?", text):
            return int(text.rstrip("U"), 0)
        for table in (self.kernel.shared, self.parameter_address):
            if text in table:
                return table[text]
        raise NotImplementedError(f"operand {text}")

    def address(self, text: str, kind: str) -> str:
        """[base+offset], as u32 or u64."""
        match = re.fullmatch(r"\[\s*([$%\w]+)\s*\+?\s*(-?\w+)?\s*\]", text)
        if match is None:
            raise NotImplementedError(f"address {text}")
        base, offset = match.groups()
        if not self.home(base) and not base.startswith("%"):
            constant = self.constant(self.immediate(base) + int(offset or "0", 0), kind)
            return self.in_window(base, constant, kind)
        start = self.read(base, kind)
        moved = int(offset, 0) if offset else 0
        return f"({start} + {self.constant(moved, kind)})" if moved else start

    # Results.
    def write(self, text: str, kind: str, expression: str) -> None:
        """Assigns to a register in the active lanes."""
        if text == "_":
            return
        name = identifier(text)
        self.line(f"t = {kinds.seen_as(expression, kind, self.homes[name])}")
        self.line(f"{name} = t if m is ALL else where(m, t, {name})")

    def write_all(self, texts: list[str], kind: str, expression: str) -> None:
        """Assigns the vectors of a sequence to registers."""
        copies = [text for text in texts if text != "_"]
        targets = ", ".join("_" if t == "_" else f"t{i}" for i, t in enumerate(texts))
        self.line(f"{targets}, = {expression}")
        names = [(identifier(t), f"t{i}") for i, t in enumerate(texts) if t != "_"]
        seen = {n: kinds.seen_as(v, kind, self.homes[n]) for n, v in names}
        with self.indented("if m is ALL:"):
            self.line("; ".join(f"{n} = {seen[n]}" for n, _ in names) if copies else "pass")
        with self.indented("else:"):
            self.line("; ".join(f"{n} = where(m, {seen[n]}, {n})" for n, _ in names) or "pass")

    # The whole function.
    def _translate(self) -> Any:
        blocks = self.kernel.blocks
        names = "".join(f"{name}, " for name in self.homes)
        with self.indented("if pc < 0:"):
            self.line(f"return keys, pend, ({names})")
        with self.indented("if pend:"):
            self.line("pc, m = rejoin(pend, pc, m, ALL)")
        self._dispatch(0, len(blocks))
        head = ["def entry(C, G, state):", "    pc, m, pend, registers = state"]
        head += [f"    S{identifier(s)} = G.special({s!r})" for s in sorted(self.specials)]
        head += ["    if registers is None:"]
        head += [f"        {n} = ZERO_{home}" for n, home in self.homes.items()] or ["        pass"]
        head += ["    else:", f"        [{names}] = registers", "    while True:"]
        self.ptx_line = {n + len(head): line for n, line in self.ptx_line.items()}
        source = "\n".join([*head, *self.lines, "    yield", ""])
        return compile(source, f"<ptx {self.kernel.name[:60]}>", "exec")

    def _scope(self, size: int) -> dict[str, Any]:
        everyone = np.ones(size, bool)
        scope = {name: getattr(lanes, name) for name in dir(lanes) if not name.startswith("__")}
        scope |= {name: getattr(control, name) for name in ("rejoin", "resume", "part", "apart")}
        scope |= {name: kinds.constant(*value, size) for name, value in self.constants.items()}
        scope |= {f"ZERO_{kind}": kinds.constant(0, kind, size) for kind in kinds.DTYPES}
        if not self.exact_fma:
            scope["fma"] = lanes.quick_fma
        return scope | {
            "np": np,
            "N": size,
            "ALL": everyone,
            "NONE": ~everyone,
            "LANE": np.arange(size, dtype=np.uint32) % np.uint32(32),
            "ONE": np.ones(size, np.float32),
            "SPIN": SPIN,
            "MUTANT": self.mutants,
            "PTX_LINE": self.ptx_line,
        }

    def _dispatch(self, low: int, high: int) -> None:
        """A binary tree of comparisons of pc."""
        if high - low == 1:
            self._block(low)
            return
        middle = (low + high) // 2
        with self.indented(f"if pc < {middle}:"):
            self._dispatch(low, middle)
        with self.indented("else:"):
            self._dispatch(middle, high)

    def _block(self, index: int) -> None:
        for instruction in self.kernel.blocks[index]:
            self.current = instruction.line
            base = instruction.parts[0]
            if base == "bra":
                self._branch(instruction, index)
                return
            if base in ENDS:
                self._exit(instruction)
                return
            self._guarded(instruction)
        last = index + 1 == len(self.kernel.blocks)
        self.line("return" if last else f"pc = {index + 1}")

    def _exit(self, instruction: Instruction) -> None:
        if instruction.guard:
            raise NotImplementedError(
                f"PTX line {instruction.line}: predicated {instruction.opcode}"
            )
        self.instruction(instruction)

    def _branch(self, instruction: Instruction, index: int) -> None:
        target, fall = self.kernel.labels[instruction.operands[0]], index + 1
        if not instruction.guard:
            self.line(f"pc = {target}")
            return
        self.line(f"t = {condition(instruction)}")
        self.line("n = count(t)")
        self.line(f"if n == 0: pc = {fall}")
        self.line(f"elif n == (N if m is ALL else count(m)): pc = {target}")
        with self.indented("else:"):
            self.line(f"keys = part(pend, t, m, {target}, {fall})")
            self.line("if keys is None: pc, m = resume(pend, ALL)")
            self.line("else: pc = -1")

    def _guarded(self, instruction: Instruction) -> None:
        if not instruction.guard:
            self._mutable(instruction)
            return
        self.line(f"saved = m; t = {condition(instruction)}; n = count(t)")
        self.saved_mask = "saved"
        with self.indented("if n:"):
            self.line("m = ALL if n == N else t")
            self._mutable(instruction)
        self.saved_mask = "m"
        self.line("m = saved")

    def _mutable(self, instruction: Instruction) -> None:
        """The instruction, and what stands for it when a mutant is selected."""
        variants = self.mutants.variants(instruction) if self.mutants is not None else []
        if variants:
            self.line(f"MUTANT.reached.update({tuple(number for number, _ in variants)})")
        for number, variant in variants:
            with self.indented(f"if MUTANT.selected == {number}:"):
                self.line("pass")
                for replacement in variant:
                    self.instruction(replacement)
        if variants:
            numbers = tuple(number for number, _ in variants)
            with self.indented(f"if MUTANT.selected not in {numbers}:"):
                self.instruction(instruction)
        else:
            self.instruction(instruction)

    def instruction(self, instruction: Instruction) -> None:
        parts, operands = instruction.parts, instruction.operands
        try:
            if rule := rule_for(parts, len(operands)):
                sources = [self.read(*pair) for pair in zip(operands[1:], rule.ins, strict=True)]
                self.write(operands[0], rule.out, f"({rule.text.format(*sources)})")
            elif parts[0] in ENDS:
                self.line("if not pend: return")
                self.line("pc, m = resume(pend, ALL)")
                self.line("continue")
            elif parts[0] in EMITTERS:
                EMITTERS[parts[0]](self, parts, operands)
            elif parts[0] in NO_EFFECT:
                self.line("pass")
            else:
                raise NotImplementedError(parts[0])
        except (NotImplementedError, TypeError, KeyError) as error:
            raise NotImplementedError(
                f"PTX line {instruction.line}: {instruction.opcode} {', '.join(operands)}: {error}"
            ) from error


def condition(instruction: Instruction) -> str:
    p = f"~{instruction.guard}" if instruction.negated else instruction.guard
    return f"{p} if m is ALL else {p} & m"


def width_of(kind: str) -> int:
    return 64 if kind == "f32x2" else 1 if kind == "pred" else 8 * kinds.DTYPES[kind].itemsize


def plain(kind: str) -> str:
    return kind if kind == "pred" else kinds.PLAIN[width_of(kind)]
