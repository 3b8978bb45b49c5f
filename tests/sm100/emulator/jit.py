"""Translate a parsed kernel into one Python generator: entry(cta, warp).

Each PTX register is a local variable holding a 32-lane numpy array (uint of its width, or bool).
Divergence: the warp runs the lowest-numbered basic block that any live lane is at, under a lane mask
(F: all 32 lanes active, m: mask); lanes waiting at other blocks are kept in `pend`.
Blocking instructions yield the condition they wait for.
"""

import re

import numpy as np

from . import ops
from .machine import PARAM_BASE, SPIN
from .ptx import WIDTH, ident

NPT = {
    1: "bool",
    8: "U16",
    16: "U16",
    32: "U32",
    64: "U64",
}  # 8-bit values live in 16-bit registers
SIGNED = {16: "I16", 32: "I32", 64: "I64"}
FLOAT = {16: "F16", 32: "F32", 64: "F64"}


class Translator:
    def __init__(self, kernel):
        self.k = kernel
        self.consts, self.out, self.lines = {}, [], {}
        self.ind = 0
        self.param_addr, off = {}, 0
        for name, size, align in kernel.params:
            off = -(-off // align) * align
            self.param_addr[name] = PARAM_BASE + off
            off += size
        self.param_size = off
        self.specials = set()

    # ---- emission ----
    def emit(self, text):
        self.out.append("    " * self.ind + text)
        self.lines[len(self.out)] = self.cur_line

    def const(self, value, width):
        value &= (1 << width) - 1
        name = f"c{width}_{value:x}"
        if name not in self.consts:
            t = {1: np.bool_, 8: np.uint16, 16: np.uint16, 32: np.uint32, 64: np.uint64}[width]
            self.consts[name] = np.full(32, value, t)
        return name

    # ---- operands ----
    def val(self, text, width):
        """Expression for a source operand, as an unsigned array of that width."""
        if text.startswith("%") and ident(text) not in self.k.regs:
            self.specials.add(text)
            return ident(text)
        if ident(text) in self.k.regs:
            w = self.k.regs[ident(text)]
            if w == width or width == 1 or {w, width} == {8, 16}:
                return ident(text)
            return f"{ident(text)}.astype({NPT[width]})"
        if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            return self.const(int(m.group(1), 16), width)
        if m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
            return self.const(int(m.group(1), 16), width)
        if re.fullmatch(r"-?\d+U?|-?0x[0-9a-fA-F]+U?", text):
            return self.const(int(text.rstrip("U"), 0), width)
        if text in self.k.shared:
            return self.const(self.k.shared[text], width)
        if text in self.param_addr:
            return self.const(self.param_addr[text], width)
        raise NotImplementedError(f"operand {text}")

    def sval(self, text, width):
        return f"{self.val(text, width)}.view({SIGNED[width]})"

    def fval(self, text, width):
        return f"{self.val(text, width)}.view({FLOAT[width]})"

    def addr(self, text, width):
        """[reg+imm] -> address expression of that width."""
        inner = text.strip()[1:-1]
        m = re.fullmatch(r"\s*([$%\w]+)\s*(?:\+\s*(-?\w+))?\s*", inner)
        base = self.val(m.group(1), width)
        off = int(m.group(2), 0) if m.group(2) else 0
        return f"({base} + {self.const(off, width)})" if off else base

    def set(self, dst, expr):
        """Assign under the current lane mask."""
        if dst == "_":
            return
        d = ident(dst)
        self.emit(f"t = {expr}")
        self.emit(f"{d} = t if F else W(m, t, {d})")

    def setmany(self, dsts, expr):
        names = [f"t{i}" for i in range(len(dsts))]
        self.emit(f"{', '.join(names)}, = {expr}")
        for d, t in zip(dsts, names):
            if d != "_":
                self.emit(f"{ident(d)} = {t} if F else W(m, {t}, {ident(d)})")

    def translate_once(self):
        if not hasattr(self, "entry"):
            self.entry = self.translate()
        return self.entry

    # ---- whole kernel ----
    def translate(self):
        self.cur_line = 0
        body, self.ind = self.out, 2
        nblocks = len(self.k.blocks)
        self.emit("if pend:")
        self.emit("    pc, m, F = reconverge(pend, pc, m)")
        self.dispatch(0, nblocks)
        code, lines = self.out, self.lines
        head = ["def entry(C, w):", "    F = True; m = None; M = ALL; pend = {}; pc = 0"]
        for sp in sorted(self.specials):
            head.append(f"    {ident(sp)} = special(C, w, {sp!r})")
        by = {}
        for r, w in self.k.regs.items():
            by.setdefault(w, []).append(r)
        for w, rs in by.items():
            for i in range(0, len(rs), 50):
                head.append("    " + " = ".join(rs[i : i + 50]) + f" = zeros[{w}]")
        head.append("    while True:")
        src = "\n".join(head + code) + "\n    yield\n"
        self.source = src
        g = {"LINES": {n + len(head): l for n, l in lines.items()}, "SPIN": SPIN, "np": np}
        g.update({n: getattr(ops, n) for n in dir(ops) if not n.startswith("__")})
        g.update(self.consts)
        exec(compile(src, f"<ptx {self.k.name[:40]}>", "exec"), g)
        return g["entry"]

    def dispatch(self, lo, hi):
        if hi - lo == 1:
            self.block(lo)
            return
        mid = (lo + hi) // 2
        self.emit(f"if pc < {mid}:")
        self.ind += 1
        self.dispatch(lo, mid)
        self.ind -= 1
        self.emit("else:")
        self.ind += 1
        self.dispatch(mid, hi)
        self.ind -= 1

    def block(self, i):
        ended = False
        for ins in self.k.blocks[i]:
            self.cur_line = ins.line
            base = ins.op.split(".")[0]
            if base == "bra":
                self.branch(ins, i)
                ended = True
            elif base in ("ret", "exit"):
                if ins.pred:
                    raise NotImplementedError("predicated ret")
                self.emit("if not pend: return")
                self.emit("pc, m, F = pop(pend)")
                ended = True
            else:
                self.instr(ins)
        if not ended:
            self.emit(f"pc = {i + 1}" if i + 1 < len(self.k.blocks) else "return")

    def branch(self, ins, i):
        target = self.k.labels[ins.args[0]]
        if not ins.pred:
            self.emit(f"pc = {target}")
            return
        p = f"~{ins.pred}" if ins.neg else ins.pred
        self.emit(f"t = {p} if F else {p} & m")
        self.emit("n = cnt(t)")
        self.emit(f"if n == 0: pc = {i + 1}")
        self.emit(f"elif n == (32 if F else cnt(m)): pc = {target}")
        self.emit(f"else: pc, m, F = diverge(pend, t, m, F, {target}, {i + 1})")

    def instr(self, ins):
        if ins.pred:
            p = f"~{ins.pred}" if ins.neg else ins.pred
            self.emit("F_, m_ = F, m")
            self.emit(f"m = {p} if F else {p} & m; F = False")
            self.emit("if m.any():")
            self.ind += 1
            self.emit("pass")
            self.gen(ins)
            self.ind -= 1
            self.emit("F, m = F_, m_")
        else:
            self.gen(ins)

    # ---- instructions ----
    def gen(self, ins):
        op = ins.op.split(".")
        name = "i_" + op[0]
        if not hasattr(self, name):
            raise NotImplementedError(f"PTX line {ins.line}: {ins.op}")
        getattr(self, name)(op, ins.args)

    def mask(self):
        return "(None if F else m)"

    def nop(self, op, a):
        pass

    def i_fence(self, op, a):
        if op[1] == "proxy" and op[2] == "async":
            self.emit("C.hb.fence_proxy(w)")

    i_prefetch = i_setmaxnreg = i_griddepcontrol = i_membar = i_nanosleep = i_applypriority = nop

    def arith(self, op, a, sym):
        t = op[-1]
        if op[-2] == "f32" and t in ("bf16", "f16"):  # sm_100 mixed precision: 16-bit first operand
            self.set(
                a[0],
                f"(from_{t}({self.val(a[1], 16)}).view(F32) {sym} {self.fval(a[2], 32)}).view(U32)",
            )
        elif t == "bf16x2":
            self.set(a[0], f"bf16x2({self.val(a[1], 32)}, {self.val(a[2], 32)}, {sym!r})")
        elif t == "f16x2":
            self.set(
                a[0],
                f"({self.val(a[1], 32)}.view(F16) {sym} {self.val(a[2], 32)}.view(F16)).view(U32)",
            )
        elif t == "f32x2":
            a = [a[0]] + [f"{self.val(x, 64)}.view(F32)" for x in a[1:]]
            self.set(a[0], f"({a[1]} {sym} {a[2]}).view(U64)")
        elif t in ("f32", "f64"):
            w = WIDTH[t]
            self.set(a[0], f"({self.fval(a[1], w)} {sym} {self.fval(a[2], w)}).view({NPT[w]})")
        elif t in ("f16", "bf16"):
            raise NotImplementedError(".".join(op))
        else:
            w = WIDTH[t]
            self.set(a[0], f"{self.val(a[1], w)} {sym} {self.val(a[2], w)}")

    def i_add(self, op, a):
        self.arith(op, a, "+")

    def i_sub(self, op, a):
        self.arith(op, a, "-")

    def i_mul(self, op, a):
        t = op[-1]
        if "wide" in op:
            w, cast = WIDTH[t], "sx" if t[0] == "s" else "zx"
            self.set(a[0], f"{cast}{w}({self.val(a[1], w)}) * {cast}{w}({self.val(a[2], w)})")
        elif "hi" in op:
            cast = "sx32" if t[0] == "s" else "zx32"
            self.set(
                a[0],
                f"(({cast}({self.val(a[1], 32)}) * {cast}({self.val(a[2], 32)})) >> U64(32)).astype(U32)",
            )
        else:
            self.arith(op, a, "*")

    def i_mad(self, op, a):
        t, w = op[-1], WIDTH[op[-1]]
        if "wide" in op:
            cast = "sx" if t[0] == "s" else "zx"
            self.set(
                a[0],
                f"{cast}{w}({self.val(a[1], w)}) * {cast}{w}({self.val(a[2], w)}) + {self.val(a[3], 2 * w)}",
            )
        elif "lo" in op:
            self.set(a[0], f"{self.val(a[1], w)} * {self.val(a[2], w)} + {self.val(a[3], w)}")
        else:
            raise NotImplementedError(".".join(op))

    def i_fma(self, op, a):
        if op[-1] == "f32x2":
            x = [f"{self.val(v, 64)}.view(F32)" for v in a[1:]]
            self.set(a[0], f"fma32({', '.join(x)}).view(U64)")
        elif op[-1] == "f32":
            self.set(a[0], f"fma32({', '.join(self.fval(v, 32) for v in a[1:])}).view(U32)")
        else:
            raise NotImplementedError(".".join(op))

    def i_div(self, op, a):
        t = op[-1]
        if t == "f32":
            self.set(a[0], f"({self.fval(a[1], 32)} / {self.fval(a[2], 32)}).view(U32)")
        else:
            v = self.sval if t[0] == "s" else self.val
            self.set(a[0], f"idiv({v(a[1], WIDTH[t])}, {v(a[2], WIDTH[t])}).view({NPT[WIDTH[t]]})")

    def i_rem(self, op, a):
        t = op[-1]
        v = self.sval if t[0] == "s" else self.val
        self.set(a[0], f"irem({v(a[1], WIDTH[t])}, {v(a[2], WIDTH[t])}).view({NPT[WIDTH[t]]})")

    def minmax(self, op, a, fint, ffloat):
        t, w = op[-1], WIDTH[op[-1]]
        if t[0] == "f":
            e = self.fval(a[1], w)
            for x in a[2:]:
                e = f"{ffloat}({e}, {self.fval(x, w)})"
            self.set(a[0], e + f".view({NPT[w]})")
        else:
            v = self.sval if t[0] == "s" else self.val
            self.set(a[0], f"{fint}({v(a[1], w)}, {v(a[2], w)}).view({NPT[w]})")

    def i_max(self, op, a):
        self.minmax(op, a, "np.maximum", "np.fmax")

    def i_min(self, op, a):
        self.minmax(op, a, "np.minimum", "np.fmin")

    def logic(self, op, a, sym):
        w = WIDTH[op[-1]]
        self.set(a[0], f"{self.val(a[1], w)} {sym} {self.val(a[2], w)}")

    def i_and(self, op, a):
        self.logic(op, a, "&")

    def i_or(self, op, a):
        self.logic(op, a, "|")

    def i_xor(self, op, a):
        self.logic(op, a, "^")

    def i_not(self, op, a):
        self.set(a[0], f"~{self.val(a[1], WIDTH[op[-1]])}")

    def i_neg(self, op, a):
        t, w = op[-1], WIDTH[op[-1]]
        v = f"(-{self.fval(a[1], w)})" if t[0] == "f" else f"(-{self.sval(a[1], w)})"
        self.set(a[0], f"{v}.view({NPT[w]})")

    def i_abs(self, op, a):
        t, w = op[-1], WIDTH[op[-1]]
        v = self.fval(a[1], w) if t[0] == "f" else self.sval(a[1], w)
        self.set(a[0], f"np.abs({v}).view({NPT[w]})")

    def i_shl(self, op, a):
        w = WIDTH[op[-1]]
        self.set(a[0], f"shl({self.val(a[1], w)}, {self.val(a[2], 32)}, {w})")

    def i_shr(self, op, a):
        w = WIDTH[op[-1]]
        v = self.sval(a[1], w) if op[-1][0] == "s" else self.val(a[1], w)
        self.set(a[0], f"shr({v}, {self.val(a[2], 32)}, {w}).view({NPT[w]})")

    def i_bfe(self, op, a):
        self.set(
            a[0],
            f"bfe({self.val(a[1], 32)}, {self.val(a[2], 32)}, {self.val(a[3], 32)}, {op[-1][0] == 's'})",
        )

    def i_prmt(self, op, a):
        self.set(a[0], f"prmt({self.val(a[1], 32)}, {self.val(a[2], 32)}, {self.val(a[3], 32)})")

    def i_lop3(self, op, a):
        self.set(
            a[0],
            f"lop3({self.val(a[1], 32)}, {self.val(a[2], 32)}, {self.val(a[3], 32)}, {int(a[4], 0)})",
        )

    def i_popc(self, op, a):
        self.set(a[0], f"np.bitwise_count({self.val(a[1], 32)}).astype(U32)")

    def i_selp(self, op, a):
        w = WIDTH[op[-1]]
        self.set(a[0], f"W({self.val(a[3], 1)}, {self.val(a[1], w)}, {self.val(a[2], w)})")

    def i_setp(self, op, a):
        cmp, t = op[1], op[-1]
        w = WIDTH[t]
        unordered = t[0] == "f" and cmp.endswith("u") and cmp not in ("eq", "num")
        c = cmp[:-1] if unordered else cmp
        sym = {
            "eq": "==",
            "ne": "!=",
            "lt": "<",
            "le": "<=",
            "gt": ">",
            "ge": ">=",
            "lo": "<",
            "ls": "<=",
            "hi": ">",
            "hs": ">=",
        }.get(c)
        v = self.fval if t[0] == "f" else self.sval if t[0] == "s" else self.val
        x, y = v(a[1], w), v(a[2], w)
        if cmp in ("nan", "num"):
            e = f"(np.isnan({x}) | np.isnan({y}))"
            e = f"~{e}" if cmp == "num" else e
        elif unordered and c != "ne":
            e = f"(({x} {sym} {y}) | np.isnan({x}) | np.isnan({y}))"
        elif t[0] == "f" and c == "ne" and not unordered:
            e = f"(({x} != {y}) & ~np.isnan({x}) & ~np.isnan({y}))"
        else:
            e = f"({x} {sym} {y})"
        if len(op) > 3 and op[2] in ("and", "or", "xor"):
            e = f"({e} {dict(zip(('and', 'or', 'xor'), '&|^'))[op[2]]} {self.val(a[3], 1)})"
        d = a[0].split("|")
        self.set(d[0], e)
        if len(d) > 1:
            raise NotImplementedError("setp with two destinations")

    def i_mov(self, op, a):
        w = WIDTH[op[-1]]
        if a[1].startswith("{"):
            parts = [x.strip() for x in a[1][1:-1].split(",")]
            pw = w // len(parts)
            self.set(a[0], f"pack{w}_{len(parts)}({', '.join(self.val(p, pw) for p in parts)})")
        elif a[0].startswith("{"):
            parts = [x.strip() for x in a[0][1:-1].split(",")]
            pw = w // len(parts)
            for i, p in enumerate(parts):
                if p != "_":
                    self.set(p, f"{self.val(a[1], w)}.view({NPT[pw]})[{i}::{len(parts)}]")
        else:
            self.set(a[0], self.val(a[1], w))

    def i_cvta(self, op, a):
        self.set(a[0], self.val(a[1], 64))

    def i_cvt(self, op, a):
        dst, src = op[-2], op[-1]
        if dst in ("f16x2", "bf16x2") and src == "f32":
            self.set(
                a[0], f"cvt_{dst}({self.fval(a[1], 32)}, {self.fval(a[2], 32)}, {'relu' in op})"
            )
        elif dst in ("f16", "bf16") and src == "f32":
            self.set(a[0], f"to_{dst}({self.fval(a[1], 32)})")
        elif dst == "f32" and src in ("f16", "bf16"):
            self.set(a[0], f"from_{src}({self.val(a[1], 16)})")
        elif dst[0] in "usb" and src[0] in "usb":
            sw, dw = WIDTH[src], WIDTH[dst]
            v = f"{self.val(a[1], max(sw, 16))}"
            if sw == 8:
                v = f"sx8({v})" if src[0] == "s" else f"({v} & U16(255))"
            elif src[0] == "s":
                v = f"{v}.view({SIGNED[sw]})"
            self.set(a[0], f"{v}.astype({NPT[max(dw, 16)]})")
        elif dst == "f32" and src[0] in "us":
            v = self.sval(a[1], WIDTH[src]) if src[0] == "s" else self.val(a[1], WIDTH[src])
            self.set(a[0], f"{v}.astype(F32).view(U32)")
        elif src == "f32" and dst == "f32":
            mode = next((m for m in op if m in ("rzi", "rni", "rmi", "rpi")), None)
            f = {
                "rzi": "np.trunc",
                "rni": "np.rint",
                "rmi": "np.floor",
                "rpi": "np.ceil",
                None: "",
            }[mode]
            self.set(a[0], f"{f}({self.fval(a[1], 32)}).view(U32)")
        elif src == "f32" and dst[0] in "us":
            mode = next((m for m in op if m in ("rzi", "rni", "rmi", "rpi")), "rzi")
            self.set(a[0], f"f2i({self.fval(a[1], 32)}, {mode!r}, {dst!r})")
        else:
            raise NotImplementedError(".".join(op))

    def unary(self, op, a, f):
        if op[-1] != "f32":
            raise NotImplementedError(".".join(op))
        self.set(a[0], f"({f}({self.fval(a[1], 32)})).view(U32)")

    def i_ex2(self, op, a):
        self.unary(op, a, "np.exp2")

    def i_lg2(self, op, a):
        self.unary(op, a, "np.log2")

    def i_rcp(self, op, a):
        self.unary(op, a, "F32(1) / ")

    def i_sqrt(self, op, a):
        self.unary(op, a, "np.sqrt")

    def i_rsqrt(self, op, a):
        self.unary(op, a, "F32(1) / np.sqrt")

    def i_tanh(self, op, a):
        self.unary(op, a, "np.tanh")

    def i_sin(self, op, a):
        self.unary(op, a, "np.sin")

    def i_cos(self, op, a):
        self.unary(op, a, "np.cos")

    # loads, stores, atomics
    def vec(self, op, a):
        n = next((int(x[1:]) for x in op if re.fullmatch(r"v\d", x)), 1)
        regs = [x.strip() for x in a[1:-1].split(",")] if a.startswith("{") else [a]
        return n, regs, max(WIDTH[op[-1]] // 8, 1)

    def i_ld(self, op, a):
        n, regs, w = self.vec(op, a[0])
        if "param" in op:
            e = f"C.ld_param({self.addr(a[1], 64)}[0], {n}, {w})"
        elif any(x.startswith("shared") for x in op):
            e = f"C.ld_shared({self.addr(a[1], 32)}, {n}, {w}, {self.mask()})"
        else:
            e = f"C.ld_global({self.addr(a[1], 64)}, {n}, {w}, {self.mask()})"
        if w == 1:
            e = f"widen8({e}, {op[-1] == 's8'})"
        self.setmany(regs, e)

    def i_st(self, op, a):
        n, regs, w = self.vec(op, a[1])
        vals = ", ".join(self.val(r, max(8 * w, 16)) for r in regs)
        if any(x.startswith("shared") for x in op):
            self.emit(f"C.st_shared({self.addr(a[0], 32)}, ({vals},), {w}, {self.mask()})")
        else:
            self.emit(f"C.st_global({self.addr(a[0], 64)}, ({vals},), {w}, {self.mask()})")

    def atomic(self, op, dst, addr, v):
        space = "shared" if any(x.startswith("shared") for x in op) else "global"
        kind = next(x for x in op if x in ("add", "max", "min", "exch", "or", "and", "inc"))
        w = WIDTH[op[-1]]
        e = (
            f"C.atom({space!r}, {kind!r}, {self.addr(addr, 32 if space == 'shared' else 64)}, {w // 8}, "
            f"{self.val(v, w)}, {self.mask()}, {op[-1][0] == 'f'})"
        )
        if dst:
            self.set(dst, e)
        else:
            self.emit(e)

    def i_atom(self, op, a):
        self.atomic(op, a[0], a[1], a[2])

    def i_red(self, op, a):
        self.atomic(op, None, a[0], a[1])

    # warp-level
    def i_shfl(self, op, a):
        d = a[0].split("|")
        mode = op[2]
        self.set(
            d[0], f"shfl_{mode}({self.val(a[1], 32)}, {self.val(a[2], 32)}, {self.val(a[3], 32)})"
        )
        if len(d) > 1:
            raise NotImplementedError("shfl with predicate")

    def i_elect(self, op, a):
        d = a[0].split("|")
        self.emit("e = 0 if F else int(np.argmax(m))")
        self.set(d[0], "lane_const(e)")
        self.set(d[1], "LANE_IS[e]")

    def i_vote(self, op, a):
        m = "ALL if F else m"
        p = self.val(a[1].lstrip("!"), 1)
        p = "~" + p if a[1].startswith("!") else p
        if op[2] == "ballot":
            self.set(a[0], f"ballot({p}, {m})")
        else:
            self.set(a[0], f"vote_{op[2]}({p}, {m})")

    def i_activemask(self, op, a):
        self.set(a[0], "ballot(ALL, ALL if F else m)")

    # barriers
    def i_bar(self, op, a):
        if "warp" in op:
            return
        n = f"C.one({self.val(a[1], 32)}, {self.mask()})" if len(a) > 1 else "0"
        self.emit(f"b = C.bar_arrive(C.one({self.val(a[0], 32)}, {self.mask()}), {n})")
        if "sync" in op:
            self.emit("while b[0].generation == b[1]: yield ('bar', b[0], b[1])")
            self.emit("C.hb.acquire(b[0], w)")

    i_barrier = i_bar

    def i_mbarrier(self, op, a):
        mk, who = self.mask(), f"f'warp {{w}} (PTX line {self.cur_line})'"
        if "init" in op:
            self.emit(f"C.mbar_init({self.addr(a[0], 32)}, {self.val(a[1], 32)}, {mk})")
        elif "inval" in op:
            self.emit(f"C.mbar_inval({self.addr(a[0], 32)}, {mk})")
        elif "try_wait" in op or "test_wait" in op:
            if "parity" not in op:
                raise NotImplementedError(".".join(op))
            addr, par = self.addr(a[1], 32), self.val(a[2], 32)
            self.emit(f"ok, b = C.mbar_ready({addr}, {par}, {mk}, {len(a) <= 3})")
            if len(a) > 3:  # with a suspend-time hint: block until the phase completes
                self.emit(f"par = C.one({par}, {mk}) & 1")
                self.emit("while not ok:")
                self.emit("    yield ('mbar', b, par)")
                self.emit("    ok = (b.phase & 1) != par")
                self.emit("    if ok: C.hb.acquire(b, w)")
            else:  # a peek: may fail although the phase is complete
                self.emit("if not ok:")
                self.emit("    yield SPIN")
                self.emit(f"    ok, b = C.mbar_ready({addr}, {par}, {mk}, True)")
            self.set(a[0], "ALL if ok else NONE")
        elif "expect_tx" in op and "arrive" not in op:
            self.emit(
                f"C.mbar_expect({self.addr(a[0], 32)}, {self.val(a[1], 32)}, {mk}, False, {who})"
            )
        elif "arrive" in op:
            dst, addr, *rest = a if not a[0].startswith("[") else [None] + a
            if "expect_tx" in op:
                self.emit(
                    f"C.mbar_expect({self.addr(addr, 32)}, {self.val(rest[0], 32)}, {mk}, True, {who})"
                )
            else:
                n = self.val(rest[0], 32) if rest else self.const(1, 32)
                self.emit(f"C.mbar_arrive({self.addr(addr, 32)}, {n}, {mk}, {who})")
        else:
            raise NotImplementedError(".".join(op))

    # bulk copies
    def i_cp(self, op, a):
        mk = self.mask()
        if "commit_group" in op:
            self.emit("C.bulk_commit(w)")
        elif "wait_group" in op:
            self.emit(f"while not C.bulk_done(w, {int(a[0])}): yield ('bulk', w, {int(a[0])})")
        elif "tensor" in op:
            load = op.index("global") > next(i for i, x in enumerate(op) if x.startswith("shared"))
            tm = a[1] if load else a[0]
            desc, coords = split_tensor(tm)
            cs = "[" + ", ".join(self.val(c, 32) for c in coords) + "]"
            if load:
                self.emit(
                    f"C.tma_load({self.addr(a[0], 32)}, {self.addr('[' + desc + ']', 64)}, {cs}, "
                    f"{self.addr(a[2], 32)}, {mk}, f'PTX line {self.cur_line}')"
                )
            else:
                red = repr("add") if op[1] == "reduce" else "None"
                self.emit(
                    f"C.tma_store({self.addr('[' + desc + ']', 64)}, {cs}, {self.addr(a[1], 32)}, {mk}, w, {red})"
                )
        elif op[1] == "reduce" and "bulk_group" in op:
            self.emit(
                f"C.bulk_reduce({self.addr(a[0], 64)}, {self.addr(a[1], 32)}, {self.val(a[2], 32)}, {mk}, w, "
                f"{FLOAT[32] if op[-1] == 'f32' else 'U32'}, {next(x for x in op if x in ('add', 'min', 'max'))!r})"
            )
        elif (
            op[1:3] == ["async", "shared"]
            or op[1:3] == ["async", "ca"]
            or op[1:3] == ["async", "cg"]
        ):
            size = int(a[2])
            self.emit(
                f"cp_async(C, {self.addr(a[0], 32)}, {self.addr(a[1], 64)}, {size}, "
                f"{self.val(a[3], 32) if len(a) > 3 else None}, {mk})"
            )
        elif "mbarrier" in op:
            # cp.async completes at once here, so the barrier arrival is immediate
            self.emit(
                f"C.mbar_arrive({self.addr(a[0], 32)}, {self.const(1, 32)}, {mk}, 'cp.async')"
            )
        else:
            raise NotImplementedError(".".join(op))

    # tensor core
    def i_tcgen05(self, op, a):
        mk = self.mask()
        what = op[1].split("::")[0]
        if op[1] == "wait::st":
            self.emit("C.hb.wait_st(w)")
            return
        if what in ("wait", "fence", "relinquish_alloc_permit"):
            return
        if what == "alloc":
            self.emit(
                f"while not C.tmem_alloc({self.addr(a[0], 32)}, {self.val(a[1], 32)}, {mk}): yield SPIN"
            )
        elif what == "dealloc":
            self.emit(f"C.tmem_dealloc({self.val(a[0], 32)}, {self.val(a[1], 32)}, {mk})")
        elif what == "ld" and "32x32b" in op and "pack::16b" not in op:
            regs = [x.strip() for x in a[0][1:-1].split(",")] if a[0].startswith("{") else [a[0]]
            self.setmany(regs, f"C.tmem_ld({self.addr(a[1], 32)}, {len(regs)}, {mk}, w)")
        elif what == "st" and "32x32b" in op and "unpack::16b" not in op:
            regs = [x.strip() for x in a[1][1:-1].split(",")] if a[1].startswith("{") else [a[1]]
            self.emit(
                f"C.tmem_st({self.addr(a[0], 32)}, ({', '.join(self.val(r, 32) for r in regs)},), {mk}, w)"
            )
        elif what == "mma" and "cta_group::1" in op and "ws" not in op:
            kind = next(x[6:] for x in op if x.startswith("kind::"))
            tmem_a = a[1].startswith("[")
            aexpr = self.addr(a[1], 32) if tmem_a else self.val(a[1], 64)
            acc = a[5] if a[4].startswith("{") else a[4]
            acc = self.val(acc.lstrip("!"), 1)
            self.emit(
                f"C.mma({self.addr(a[0], 32)}, {aexpr}, {self.val(a[2], 64)}, {self.val(a[3], 32)}, {acc}, "
                f"{mk}, {tmem_a}, {kind!r}, 'PTX line {self.cur_line}')"
            )
        elif what == "commit" and "cta_group::1" in op and not any("multicast" in x for x in op):
            self.emit(
                f"C.commit({self.addr(a[0], 32)}, {mk}, f'warp {{w}} (PTX line {self.cur_line})')"
            )
        else:
            raise NotImplementedError(".".join(op))


def split_tensor(text):
    """[%rd, {x, y}] -> ('%rd', ['x', 'y'])"""
    m = re.fullmatch(r"\[\s*([$%\w]+)\s*,\s*\{(.*)\}\s*\]", text, flags=re.S)
    return m.group(1), [c.strip() for c in m.group(2).split(",")]
