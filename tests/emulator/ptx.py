"""PTX text to `Kernel`: parameters, registers, and instructions in basic blocks.

`parse(text)` gives the kernels of a module by name. Scoped names (the blocks that inline assembly
opens) are renamed apart. A label starts a block; so does an instruction that may wait, so that
lanes which wait for different things can part before it; a branch or a return ends one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BITS = {"pred": 1, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32x2": 64}
BITS |= {f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)}
BITS |= {"f32": 32, "f64": 64}
SHARED_BASE = 1024  # the first KiB of the shared window is the system's on sm_100
WINDOW = 1 << 18  # from one CTA of a cluster to the next: what a descriptor can address
PEER = 1 << 24  # the same on hardware
DYNAMIC_ALIGN = 1024
WAITS = ("mbarrier.try_wait", "mbarrier.test_wait", "bar.sync", "barrier.sync", "barrier.cta.sync")
ENDS = ("bra", "ret", "exit")


@dataclass
class Instruction:
    """One instruction: opcode with modifiers, operand texts, guard predicate, line in the text."""

    opcode: str
    operands: list[str]
    guard: str | None
    negated: bool
    line: int

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


@dataclass(frozen=True)
class Parameter:
    name: str
    size: int
    align: int


@dataclass
class Kernel:
    """registers: Python identifier to width in bits (1: predicate); labels: to block index."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    registers: dict[str, int] = field(default_factory=dict)
    blocks: list[list[Instruction]] = field(default_factory=lambda: [[]])
    labels: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)


def identifier(name: str) -> str:
    return name.lstrip("%").replace("$", "_").replace(".", "_")


def split_operands(text: str) -> list[str]:
    """Splits at the commas outside braces, brackets and parentheses."""
    results, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
        elif char == "," and not depth:
            results.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*results, last] if last else results


STATEMENT = re.compile(r"\s*(?:(?P<brace>[{}])|(?P<label>[$\w]+):(?!:)|(?P<text>[^;]*);)")


def statements(body: str, first_line: int) -> Iterator[tuple[str, int]]:
    """(statement, line); the braces of a scope and labels are statements of their own."""
    position, line, counted = 0, first_line, 0
    while match := STATEMENT.match(body, position):
        position = match.end()
        start = match.start(match.lastgroup or 0)
        line += body.count("\n", counted, start)
        counted = start
        text = match.group(match.lastgroup or 0).strip()
        yield (text + ":" if match.lastgroup == "label" else text), line


def without_comments(text: str) -> str:
    blank = lambda found: re.sub(r"[^\n]", " ", found.group())
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", blank, text, flags=re.S))


def parse(text: str) -> dict[str, Kernel]:
    text = without_comments(text)
    kernels = {}
    for result in re.finditer(r"\.entry\s+([$\w]+)\s*\((.*?)\)\s*[^{]*\{", text, flags=re.S):
        kernel = Kernel(result.group(1), [parameter(p) for p in split_operands(result.group(2))])
        depth, end = 1, result.end()
        while depth:
            brace = re.compile(r"[{}]").search(text, end)
            if brace is None:
                raise ValueError(f"{kernel.name}: the body does not end")
            depth += 1 if brace.group() == "{" else -1
            end = brace.end()
        body = text[result.end() : end - 1]
        kernel.shared = shared_symbols(text[: result.start()] + body)
        read_body(kernel, body, 1 + text.count("\n", 0, result.end()))
        kernels[kernel.name] = kernel
    return kernels


def parameter(text: str) -> Parameter:
    """`.param [.align n] .type [.ptr .space .align n] name[count]`"""
    match = re.match(
        r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
        r"(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([$\w]+)(?:\[(\d+)\])?",
        text,
    )
    if match is None:
        raise ValueError(f"parameter: {text}")
    align, kind, name, count = match.groups()
    size = BITS[kind] // 8
    return Parameter(name, size * int(count or 1), int(align or size))


def shared_symbols(text: str) -> dict[str, int]:
    """Addresses of shared variables: static ones first, the dynamic block after them."""
    static = re.findall(r"(?<!extern )\.shared\s+\.align\s+(\d+)\s+\.b8\s+([$\w]+)\[(\d+)\]", text)
    dynamic = re.findall(r"\.extern\s+\.shared\s+\.align\s+\d+\s+\.b8\s+([$\w]+)\[\]", text)
    address, symbols = SHARED_BASE, {}
    for align, name, size in static:
        address = -(-address // int(align)) * int(align)
        symbols[name] = address
        address += int(size)
    base = -(-address // DYNAMIC_ALIGN) * DYNAMIC_ALIGN
    return symbols | dict.fromkeys(dynamic, base)


def read_body(kernel: Kernel, body: str, first_line: int) -> None:
    scopes: list[dict[str, str]] = [{}]
    count, flat = 0, []
    for text, line in statements(body, first_line):
        if text == "{":
            count += 1
            scopes.append({"": str(count)})
        elif text == "}":
            scopes.pop()
        elif text.startswith(".reg"):
            declare(kernel, text, scopes)
        elif not text.startswith("."):
            if text.endswith(":") and len(scopes) > 1:
                scopes[-1][text[:-1]] = f"{text[:-1]}__s{scopes[-1]['']}"
            flat.append((text, line, list(scopes)))
    for text, line, inside in flat:
        names = {key: new for scope in inside for key, new in scope.items() if key}
        if names:
            text = re.sub(r"[$%\w]+", lambda found: names.get(found.group(), found.group()), text)
        place(kernel, text, line)


def declare(kernel: Kernel, text: str, scopes: list[dict[str, str]]) -> None:
    match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, flags=re.S)
    assert match
    for name in split_operands(match.group(2)):
        if many := re.fullmatch(r"(%[A-Za-z_]+)<(\d+)>", name):
            for i in range(int(many.group(2))):
                kernel.registers[f"{identifier(many.group(1))}{i}"] = BITS[match.group(1)]
            continue
        new = name if len(scopes) == 1 else f"{name}__s{scopes[-1]['']}"
        scopes[-1][name] = new
        kernel.registers[identifier(new)] = BITS[match.group(1)]


def leading(literal: int) -> str:
    """The literal of a mask that turns an address into that of the leading CTA of a pair, which the
    compiler may have changed in bits that it knows."""
    known = DYNAMIC_ALIGN - 1
    turns = literal | known == ~PEER | known
    return str((literal | PEER) & ~WINDOW if turns else literal)


def place(kernel: Kernel, text: str, line: int) -> None:
    """Appends a statement to the last block, or starts a new one."""
    blocks = kernel.blocks
    if text.endswith(":"):
        if blocks[-1]:
            blocks.append([])
        kernel.labels[text[:-1]] = len(blocks) - 1
        return
    match = re.match(r"(?:@(!?)([%\w]+)\s+)?([\w.:]+)\s*(.*)", text, flags=re.S)
    assert match, text
    negated, guard, opcode, rest = match.groups()
    if opcode == "and.b32":
        rest = re.sub(r"-\d+$", lambda found: leading(int(found.group())), rest)
    instruction = Instruction(
        opcode, split_operands(rest), identifier(guard) if guard else None, negated == "!", line
    )
    if blocks[-1] and opcode.startswith(WAITS):
        blocks.append([])
    blocks[-1].append(instruction)
    if instruction.parts[0] in ENDS:
        blocks.append([])
