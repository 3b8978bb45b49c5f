"""Instructions with side effects: memory, barriers, bulk copies, the tensor core.

Generated code calls the components of a CTA: C.memory, C.shared, C.sync, C.copies, C.tensors. Each
call passes the gang G and the mask m of its active lanes.
"""

import re
from typing import TYPE_CHECKING

from . import kinds
from .faults import EmulatorError
from .homes import members
from .ptx import WINDOW, identifier
from .values import Emitter, registering, vector

if TYPE_CHECKING:
    from .translate import Translator

EMITTERS: dict[str, Emitter] = {}
emits = registering(EMITTERS)
SHIFT = WINDOW.bit_length() - 1
TENSOR = "C.tensors[G.rank]"
POLLS = ("acquire", "volatile", "relaxed", "mmio")


def line(text: str, *operands: str) -> Emitter:
    """An instruction that is one line of code. operands: how each is read: a number of the text
    ("int"), a value of a kind, or an address in brackets, such as "[u32]"."""

    def emit(t: "Translator", op: list[str], a: list[str]) -> None:
        t.line(text.format(*(operand(t, *pair) for pair in zip(a, operands, strict=False))))

    return emit


def operand(t: "Translator", text: str, how: str) -> str:
    if how == "int":
        return str(int(text))
    return t.address(text, how.strip("[]")) if how[0] == "[" else t.read(text, how)


def has(op: list[str], word: str) -> bool:
    """Whether a modifier is `word`, with any `::` suffix."""
    return any(part.split("::")[0] == word for part in op)


def word(op: list[str], *choices: str) -> str:
    return next(part for part in op if part in choices)


# Loads, stores, atomics.
@emits("ld", "ldu")
def load(t: "Translator", op: list[str], a: list[str]) -> None:
    registers, size = vector(op, a[0])
    kind = kinds.PTX[op[-1]]
    many = len(registers)
    if has(op, "param"):
        value = f"C.parameters({t.address(a[1], 'u64')}, {many}, {size})"
    elif has(op, "shared"):
        value = f"C.shared.load(G, {t.address(a[1], 'u32')}, {many}, {size}, m)"
    elif has(op, "local"):
        raise NotImplementedError("local memory")
    else:
        if any(part in POLLS for part in op):
            t.line("yield SPIN")
        value = f"C.memory.load({t.address(a[1], 'u64')}, {many}, {size}, m)"
    room = max((t.kernel.registers[identifier(x)] for x in registers if x != "_"), default=0)
    if 8 * size < max(room, 16):  # a register that is wider is filled
        kind = kinds.PLAIN[max(room, 16)]
        sign = "I" if op[-1].startswith("s") else "U"
        value = f"[x.view({sign}{8 * size}).astype({kind.upper()}) for x in {value}]"
    elif kind != (plain := kinds.PLAIN[8 * size]):
        value = f"[x.view({kind.upper()}) for x in {value}]" if kind != "f32x2" else value
        kind = plain if kind == "f32x2" else kind
    t.write_all(registers, kind, value)


@emits("st")
def store(t: "Translator", op: list[str], a: list[str]) -> None:
    registers, size = vector(op, a[1])
    kind = kinds.PLAIN[max(8 * size, 16)]
    data = "".join(f"{t.read(text, kind)}, " for text in registers)
    if "async" in op:
        t.line(f"C.copies.give(G, {t.address(a[0], 'u32')}, ({data}), {t.address(a[2], 'u32')}, m)")
        return
    if has(op, "local"):
        raise NotImplementedError("local memory")
    if has(op, "shared"):
        t.line(f"C.shared.store(G, {t.address(a[0], 'u32')}, ({data}), {size}, m)")
    else:
        t.line(f"C.memory.store({t.address(a[0], 'u64')}, ({data}), {size}, m)")


@emits("prefetch")
def prefetch(t: "Translator", op: list[str], a: list[str]) -> None:
    """Others are of tensor maps."""
    noted = op[1] == "global"
    t.line(f"C.memory.prefetch({t.address(a[0], 'u64')}, m)" if noted else "pass")


ATOMICS = ("add", "min", "max", "exch", "and", "or", "xor", "inc", "dec", "cas")


def atomic(t: "Translator", op: list[str], target: str | None, a: list[str]) -> None:
    space, kind = ("shared", "u32") if has(op, "shared") else ("memory", "u64")
    if op[-1] in ("f16x2", "bf16x2") or "noftz" in op or any(p.startswith("v") for p in op[1:]):
        raise NotImplementedError("atomics on vectors and half precisions")
    value_kind = kinds.PTX[op[-1]]
    data = "".join(f"{t.read(text, value_kind)}, " for text in a[1:])
    gang = "G, " if space == "shared" else ""
    name = word(op, *ATOMICS)
    call = f"C.{space}.atomic({gang}{t.address(a[0], kind)}, {name!r}, ({data}), m)"
    t.line("yield" if name == "add" else "yield SPIN")  # who counts does not poll
    if target:
        t.write(target, value_kind, call)
    else:
        t.line(call)


@emits("atom")
def atom(t: "Translator", op: list[str], a: list[str]) -> None:
    atomic(t, op, a[0], a[1:])


@emits("red")
def red(t: "Translator", op: list[str], a: list[str]) -> None:
    if "async" in op:
        raise NotImplementedError("remote reductions")
    atomic(t, op, None, a)


@emits("fence")
def fence(t: "Translator", op: list[str], a: list[str]) -> None:
    # Of the fences those towards the async proxy are modelled; gangs run in order.
    of_shared = op[1:3] == ["proxy", "async"] and "global" not in op
    t.line("C.clocks.fence_proxy(G, m)" if of_shared else "pass")
    if of_shared or op[1] == "mbarrier_init":
        t.line("C.sync.fence(G, m)")


# Barriers.
def part_if_apart(t: "Translator", *operands: str) -> None:
    """Before a wait: warps of the gang whose operands differ part, and come back here."""
    with t.indented("if N > 32 and (keys := apart(m, " + ", ".join(operands) + ")) is not None:"):
        t.line(f"pend[pc] = {t.saved_mask}; pc = -1")
        t.line("continue")


@emits("bar", "barrier")
def named_barrier(t: "Translator", op: list[str], a: list[str]) -> None:
    if "warp" in op:
        t.line("pass")
        return
    if has(op, "cluster"):
        cluster_barrier(t, op)
        return
    if "red" in op:
        raise NotImplementedError("reduction over a barrier")
    number = t.read(a[0], "u32")
    threads = t.read(a[1], "u32") if len(a) > 1 else t.constant(0, "u32")
    wait = "sync" in op
    if wait:
        part_if_apart(t, number, threads)
    t.line(f"b = C.sync.arrive_named(G, {number}, {threads}, m)")
    if wait:
        t.line("while not C.sync.passed_named(G, b, m): yield ('bar', b)")


def cluster_barrier(t: "Translator", op: list[str]) -> None:
    """Of all threads of the cluster."""
    if "arrive" in op:
        t.line("C.sync.arrive_cluster(G, m)")
    else:
        t.line("b = C.sync.cluster_ticket(G)")
        t.line("while not C.sync.passed_named(G, b, m): yield ('bar', b)")


@emits("mbarrier")
def mbarrier(t: "Translator", op: list[str], a: list[str]) -> None:
    if "init" in op:
        line("C.sync.init(G, {}, {}, m)", "[u32]", "u32")(t, op, a)
    elif "inval" in op:
        line("C.sync.invalidate({}, m)", "[u32]")(t, op, a)
    elif "try_wait" in op or "test_wait" in op:
        wait_parity(t, op, a)
    elif "expect_tx" in op or "arrive" in op:
        arrive(t, op, a)
    else:
        raise NotImplementedError(".".join(op))


def wait_parity(t: "Translator", op: list[str], a: list[str]) -> None:
    """With a time limit: blocks until the phase is complete. Without: may give up at once."""
    if "parity" not in op:
        raise NotImplementedError("waiting for a state token")
    address, parity = t.address(a[1], "u32"), t.read(a[2], "u32")
    t.line(f"u = {address}; v = {parity}")
    part_if_apart(t, "u", "v")
    t.line("b, v = C.sync.operands(u, v, m)")
    if len(a) > 3:
        t.line("while not C.sync.passed(G, b, v, m): yield ('mbar', b, v)")
        t.write(a[0], "pred", "ALL")
        return
    t.line("ok = C.sync.peek(G, b, v, m)")
    with t.indented("if not ok:"):
        t.line("yield SPIN")
        t.line("ok = C.sync.peek(G, b, v, m)")
    t.write(a[0], "pred", "ALL if ok else NONE")


def arrive(t: "Translator", op: list[str], a: list[str]) -> None:
    if not a[0].startswith("["):
        a = a[1:]  # the state token, which nothing here reads
    if any("cluster" in part for part in op[2:]) and "remote" in op:
        raise NotImplementedError("arrival in another CTA")
    address = t.address(a[0], "u32")
    if "expect_tx" in op:
        text = f"C.sync.expect(G, {address}, {t.read(a[1], 'u32')}, m, {'arrive' in op})"
    else:
        many = t.read(a[1], "u32") if len(a) > 1 else t.constant(1, "u32")
        text = f"C.sync.arrive(G, {address}, {many}, m)"
    t.line(text)


@emits("mapa")
def map_address(t: "Translator", op: list[str], a: list[str]) -> None:
    """The address of a variable in the CTA of this rank. Only an access needs it to be there."""
    kind = kinds.PTX[op[-1]]
    address = t.read(a[1], kind)
    window = f"{t.read(a[2], 'u32')}.astype({kind.upper()}) << {SHIFT}"
    t.write(a[0], kind, f"({address} & {WINDOW - 1} | {window})")


# Copies.
@emits("cp")
def copy(t: "Translator", op: list[str], a: list[str]) -> None:
    if "commit_group" in op:
        t.line("C.copies.commit(G, m)" if "bulk" in op else "pass")
    elif "wait_group" in op or "wait_all" in op:
        if "bulk" in op:
            count = int(a[0])
            t.line(f"while not C.copies.done(G, {count}, m): yield ('bulk', G, {count}, m)")
        else:
            t.line("pass")  # cp.async is done at once
    elif "prefetch" in op:
        t.line("pass")
    elif "mbarrier" in op:
        t.line(f"C.sync.arrive(G, {t.address(a[0], 'u32')}, {t.constant(1, 'u32')}, m)")
    elif "tensor" in op:
        tensor_copy(t, op, a)
    elif "bulk" in op:
        bulk_copy(t, op, a)
    else:
        size = int(a[2])
        arguments = t.read(a[3], "u32") if len(a) > 3 else "None"
        addresses = f"{t.address(a[0], 'u32')}, {t.address(a[1], 'u64')}"
        t.line(f"C.copies.small(G, {addresses}, {size}, {arguments}, m)")


def the_ctas(t: "Translator", text: str) -> str:
    """The CTAs of a multicast, a bit for each."""
    ctas = t.read(text, "u16")
    t.line(f"of_the_cluster({ctas} >> G.block.cluster != 0, m)")
    return ctas


def tensor_copy(t: "Translator", op: list[str], a: list[str]) -> None:
    """To shared memory: [dst], [map, {coordinates}], [mbarrier]. From it: [map, {...}], [src]."""
    if any(word in op for word in ("im2col", "gather4", "scatter4")):
        raise NotImplementedError("only tiled copies")
    ctas = the_ctas(t, a[3]) if "multicast::cluster" in op else "None"
    loads = op[1] != "reduce" and op.index("global") > next(
        i for i, part in enumerate(op) if part.startswith("shared")
    )
    target = a[1] if loads else a[0]
    match = re.fullmatch(r"\[\s*([$%\w]+)\s*,\s*(\{.*\})\s*\]", target, flags=re.S)
    if match is None:
        raise NotImplementedError(f"tensor coordinates {target}")
    handle = t.read(match.group(1), "u64")
    coordinates = "".join(f"{t.read(c, 'i32')}, " for c in members(match.group(2)))
    if loads:
        places = f"{t.address(a[0], 'u32')}, {handle}, ({coordinates}), {t.address(a[2], 'u32')}"
        t.line(f"C.copies.load(G, {places}, {ctas}, {'cta_group::2' in op}, m)")
    else:
        mode = repr(word(op, "add", "min", "max")) if op[1] == "reduce" else "None"
        source = t.address(a[1], "u32")
        t.line(f"C.copies.store(G, {handle}, ({coordinates}), {source}, {mode}, m)")


def bulk_copy(t: "Translator", op: list[str], a: list[str]) -> None:
    """cp.async.bulk and cp.reduce.async.bulk between shared and global memory."""
    spaces = [part.split("::")[0] for part in op if part.startswith(("shared", "global"))]
    if spaces == ["shared", "global"]:
        places = f"{t.address(a[0], 'u32')}, {t.address(a[1], 'u64')}, {t.read(a[2], 'u32')}"
        t.line(f"C.copies.bulk_load(G, {places}, {t.address(a[3], 'u32')}, m)")
        return
    if spaces != ["global", "shared"]:
        raise NotImplementedError("bulk copy between these spaces")
    mode, dtype = "None", "'u1'"
    if op[1] == "reduce":
        mode = repr(word(op, "add", "min", "max"))
        dtype = repr(kinds.DTYPES[kinds.PTX[op[-1]]].str)
    places = f"{t.address(a[0], 'u64')}, {t.address(a[1], 'u32')}, {t.read(a[2], 'u32')}"
    t.line(f"C.copies.bulk_store(G, {places}, {mode}, {dtype}, m)")


# The tensor core.
@emits("tcgen05")
def tensor_core(t: "Translator", op: list[str], a: list[str]) -> None:
    what = op[1].split("::")[0]
    t.groups.update(part for part in op if part.startswith("cta_group"))
    if len(t.groups) > 1:
        raise EmulatorError("tcgen05 of one CTA and of a pair in one kernel")
    if what not in TENSOR_CORE:
        raise NotImplementedError(what)
    TENSOR_CORE[what](t, op, a)


def tensor_wait(t: "Translator", op: list[str], a: list[str]) -> None:
    t.line(f"C.clocks.wait_{'store' if op[1] == 'wait::st' else 'load'}(G, m)")


def tensor_fence(t: "Translator", op: list[str], a: list[str]) -> None:
    side = "before" if op[1] == "fence::before_thread_sync" else "after"
    t.line(f"C.clocks.fence_{side}(G.active(m))")


def shape_32x32b(op: list[str]) -> None:
    if "32x32b" not in op or any("pack" in part for part in op):
        raise NotImplementedError("tcgen05.ld and st other than 32x32b")


def tensor_load(t: "Translator", op: list[str], a: list[str]) -> None:
    shape_32x32b(op)
    registers = members(a[0])
    homes = {t.home(text) for text in registers if text != "_"}
    kind = homes.pop() if len(homes) == 1 else "u32"
    call = f"{TENSOR}.load(G, {t.address(a[1], 'u32')}, {len(registers)}, m)"
    t.write_all(registers, kind or "u32", f"{call}.view({(kind or 'u32').upper()})")


def tensor_store(t: "Translator", op: list[str], a: list[str]) -> None:
    shape_32x32b(op)
    data = "".join(f"{t.read(text, 'u32')}, " for text in members(a[1]))
    t.line(f"{TENSOR}.store(G, {t.address(a[0], 'u32')}, ({data}), m)")


def multiply(t: "Translator", op: list[str], a: list[str]) -> None:
    """[d], a or [a], b, instruction descriptor, [{disabled lanes},] accumulate"""
    if "ws" in op or "sp" in op or "block_scale" in op:
        raise NotImplementedError("this form of tcgen05.mma")
    kind = next(part[6:] for part in op if part.startswith("kind::"))
    from_tensor = a[1].startswith("[")
    first = t.address(a[1], "u32") if from_tensor else t.read(a[1], "u64")
    second, form = t.read(a[2], "u64"), t.read(a[3], "u32")
    accumulate = t.read(a[5] if a[4].startswith("{") else a[4], "pred")
    operands = f"{t.address(a[0], 'u32')}, {first}, {second}, {form}, {accumulate}"
    more = f"{from_tensor}, {kind!r}, {'cta_group::2' in op}"
    t.line(f"{TENSOR}.multiply(G, {operands}, {more}, m)")


def commit(t: "Translator", op: list[str], a: list[str]) -> None:
    ctas = the_ctas(t, a[1]) if "multicast::cluster" in op else "None"
    t.line(f"{TENSOR}.commit(G, {t.address(a[0], 'u32')}, {ctas}, m)")


TENSOR_CORE: dict[str, Emitter] = {
    "wait": tensor_wait,
    "fence": tensor_fence,
    "alloc": line(f"while not {TENSOR}.allocate(G, {{}}, {{}}, m): yield SPIN", "[u32]", "u32"),
    "dealloc": line(f"{TENSOR}.deallocate(G, {{}}, {{}}, m)", "u32", "u32"),
    "relinquish_alloc_permit": line(f"{TENSOR}.relinquish()"),
    "ld": tensor_load,
    "st": tensor_store,
    "mma": multiply,
    "commit": commit,
}
EMITTERS |= {
    "discard": line("C.memory.discard({}, {}, m)", "[u64]", "int"),
    "nanosleep": line("yield SPIN"),
}
